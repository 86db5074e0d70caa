"""The paper's numbers, as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PaperResult:
    """A result the paper prints.

    Attributes:
        metric: its name here.
        mean: over the paper's runs.
        spread: standard deviation over the paper's runs.
        epochs: trained for; None if not printed.
        source: where it stands in the paper.
    """

    metric: str
    mean: float
    spread: float
    epochs: int | None
    source: str


PAPER_RESULTS = {
    "heat/smoe": PaperResult("within_1_percent", mean=100.0, spread=0.0, epochs=8, source="Figure 3, left"),
}
