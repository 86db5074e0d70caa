"""The straight-through rule: the scores receive the gradient of exchanging experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from smoe.rules.rule import Rule


@dataclass(frozen=True)
class StraightThrough(Rule):
    """The scores of a selected expert and of a challenger receive the gradient of the exchange.

    Needs a gate that does not look at its input and selects by score, and experts that are not weighted.
    """

    name: ClassVar[str] = "straight_through"
    needs_order: ClassVar[str] = "score"
    learner: ClassVar[str] = "smoe.nn.learning.straight_through:StraightThroughLearner"
