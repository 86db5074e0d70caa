"""The routing classification loss as a rule (paper section 2.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from smoe.rules.rule import Damping, Rule, check_fraction, check_not_negative, check_tolerance


@dataclass(frozen=True)
class RoutingClassification(Rule):
    """The paper's rule: the gate learns to classify its choices as right or wrong.

    A choice is wrong if its error exceeds a quantile of its sample's errors by more than a tolerance. The gate's scores
    receive the gradient of the cross-entropy against labels made from this.

    Attributes:
        error_quantile: Quantile of a sample's errors above which a choice is wrong, in [0, 1].
        tolerance: A choice is wrong only if its error exceeds the quantile by more than this.
        tolerance_unit: Unit of the tolerance: `data`, the units of the data, as in the released code; or `output`, the
            root mean square of the layer's output in the batch, so that the scale of the data has no effect.
        weight: Factor of the loss.
        damping: Damping that a layer with this rule uses unless it is given its own; None for none.
    """

    error_quantile: float = 0.7
    tolerance: float = 1e-5
    tolerance_unit: str = "data"
    weight: float = 1.0
    damping: Damping | None = None

    name: ClassVar[str] = "rc"
    learner: ClassVar[str] = "smoe.nn._classification:RoutingClassificationLearner"

    def __post_init__(self) -> None:
        check_fraction("error_quantile", self.error_quantile)
        check_tolerance(self.tolerance, self.tolerance_unit)
        check_not_negative("weight", self.weight)

    @property
    def carried_damping(self) -> Damping | None:
        """The damping of the preset."""
        return self.damping

    @classmethod
    def paper(cls) -> RoutingClassification:
        """The settings of the paper's text: error quantile 0.7 and damping 0.1."""
        return cls(error_quantile=0.7, damping=Damping(factor=0.1, error_quantile=0.7))

    @classmethod
    def released(cls) -> RoutingClassification:
        """The settings of the authors' released command line for heat diffusion: error quantile 0.3 and damping 0."""
        return cls(error_quantile=0.3, damping=Damping(factor=0.0, error_quantile=0.3))
