"""Probing as a rule: pixels try experts that are not selected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from smoe.rules.rule import Rule, check_not_negative


@dataclass(frozen=True)
class Probing(Rule):
    """Each pixel compares one selected expert with one that is not, and exchanges them if that lowers the loss.

    Needs a `TensorGate` that selects by score, and experts that are not weighted. See docs/probing.md.

    Attributes:
        window: Backward passes after which the pixels decide, at least 1.
        confidence: Standard errors by which the comparison must favour the other expert.
    """

    window: int = 8
    confidence: float = 0.0

    name: ClassVar[str] = "probe"
    orders: ClassVar[tuple[str, ...]] = ("score",)
    learner: ClassVar[str] = "smoe.nn._probing:ProbingLearner"

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"window must be at least 1, got {self.window}")
        check_not_negative("confidence", self.confidence)
