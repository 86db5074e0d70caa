"""The straight-through rule: the scores receive the gradient of choosing other experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from smoe.rules.rule import Rule, check_not_negative


@dataclass(frozen=True)
class StraightThrough(Rule):
    """The scores receive the gradient of the loss by how much of each other choice would be made.

    With a gate of families, all candidates of a family are compared, each with the probability that the softmax of its
    scores gives it. One expert of each family is computed in forward; in training it is drawn with noise, so that
    candidates that are nearly as good take part, and the noise has no effect where the gate is certain. The gradient is
    in units of its own spread: the scale of loss and data has no effect. With a gate that selects the experts with the
    highest scores (`order="score"`), one challenger is compared with one selected expert at each pixel, without noise.
    Needs a gate that does not look at its input. See docs/rules.md.

    Attributes:
        temperature: Temperature of the softmax over a family, positive.
        share: Share of the samples of a batch, in (0, 1], from which the gate learns. The other candidates are computed
            for these samples only, which bounds the cost of a training step. Where it is less than one sample, the gate
            learns in some of the passes only. None for a quarter with up to three candidates in a family, and for
            0.5 / (K - 1) with K of them.
        noise: Standard deviation of the noise of the selection in training, in units of the scores; 0 for none.
        warm_up: Backward passes during which the noise grows from 0 to `noise`, so that a trained network that was
            converted is not disturbed while its experts begin to differ. A compiled layer has no warm-up.
        patience: Backward passes after which an expert of a family that serves less than 1 % of the pixels becomes a
            copy of the one of its family that serves most; 0 for never. Needs a `FactorisedGate`, and a layer of
            filters.
    """

    temperature: float = 1.0
    share: float | None = None
    noise: float = 1.25
    warm_up: int = 100
    patience: int = 0

    name: ClassVar[str] = "straight_through"
    orders: ClassVar[tuple[str, ...]] = ("score", "families")
    learner: ClassVar[str] = "smoe.nn._straight_through:StraightThroughLearner"

    def __post_init__(self) -> None:
        if not self.temperature > 0.0:
            raise ValueError(f"temperature must be positive, got {self.temperature}")
        if self.share is not None and not 0.0 < self.share <= 1.0:
            raise ValueError(f"share must be in (0, 1], got {self.share}")
        check_not_negative("noise", self.noise)
        check_not_negative("warm_up", self.warm_up)
        check_not_negative("patience", self.patience)
