"""The straight-through rule: the scores receive the gradient of choosing other experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from smoe.rules.rule import Rule


@dataclass(frozen=True)
class StraightThrough(Rule):
    """The scores receive the gradient of the loss by how much of each other choice would be made.

    With a gate of families, all candidates of a family are compared, each with the probability that the softmax of its
    scores gives it; the selected experts alone are computed in forward. With a gate that selects the experts with the
    highest scores (`order="score"`), one challenger is compared with one selected expert at each pixel. Needs a gate
    that does not look at its input. See docs/rules.md.

    Attributes:
        temperature: Temperature of the softmax over a family, positive.
        share: Share of the samples of a batch, in (0, 1], from which the gate learns. The other candidates are computed
            for these samples only, which bounds the cost of a training step.
    """

    temperature: float = 1.0
    share: float = 0.25

    name: ClassVar[str] = "straight_through"
    orders: ClassVar[tuple[str, ...]] = ("score", "families")
    learner: ClassVar[str] = "smoe.nn.learning.straight_through:StraightThroughLearner"

    def __post_init__(self) -> None:
        if not self.temperature > 0.0:
            raise ValueError(f"temperature must be positive, got {self.temperature}")
        if not 0.0 < self.share <= 1.0:
            raise ValueError(f"share must be in (0, 1], got {self.share}")
