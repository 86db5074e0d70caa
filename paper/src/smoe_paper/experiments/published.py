"""Results that a publication prints, as data. Imports nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PublishedResult:
    """A result that a publication prints.

    Attributes:
        metric: Name of the metric here.
        mean: Mean over the publication's runs.
        spread: Standard deviation over the publication's runs.
        epochs: Number of epochs; None if it is not printed.
        source: Place in the publication.
    """

    metric: str
    mean: float
    spread: float
    epochs: int | None
    source: str
