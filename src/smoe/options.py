"""The options of the layers that have names, and how routing learns. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

PaddingMode = Literal["zeros", "circular", "longitude"]
PADDING_MODES: tuple[PaddingMode, ...] = get_args(PaddingMode)

Order = Literal["score", "index", "families"]
ORDERS: tuple[Order, ...] = get_args(Order)

BiasOwner = Literal["expert", "slot"]
BIAS_OWNERS: tuple[BiasOwner, ...] = get_args(BiasOwner)

Normalization = Literal["none", "softmax", "abs", "abs_softmax"]
NORMALIZATIONS: tuple[Normalization, ...] = get_args(Normalization)

GateInit = Literal["kaiming", "paper", "smooth", "uniform"]
GATE_INITS: tuple[GateInit, ...] = get_args(GateInit)

Combiner = Literal["rows_and_columns", "table", "input"]
COMBINERS: tuple[Combiner, ...] = get_args(Combiner)

CombinerNormalization = Literal["softmax", "norm", "none"]
COMBINER_NORMALIZATIONS: tuple[CombinerNormalization, ...] = get_args(CombinerNormalization)


TrainingRule = Literal["rc", "probe", "straight_through", "end_to_end", "none"]
TRAINING_RULES: tuple[TrainingRule, ...] = get_args(TrainingRule)

ToleranceUnit = Literal["data", "output"]
TOLERANCE_UNITS: tuple[ToleranceUnit, ...] = get_args(ToleranceUnit)


@dataclass(frozen=True)
class RoutingTraining:
    """How the routing learns.

    Attributes:
        training_rule: what the gate learns from: `rc`, the routing classification loss, and nothing else (paper,
            section 2.2); `probe`, trials of experts that are not selected (`smoe.nn.Probing`);
            `straight_through`, the gradient of such an exchange, followed by the optimiser; `end_to_end`, the error at
            its chosen experts; `none`, nothing.
        rc_weight: factor of the RC loss; like the next five, without effect on `probe` and `straight_through`.
        error_quantile: quantile of a sample's errors above which a choice is wrong.
        damping: factor of the error that wrongly chosen experts learn from; None leaves it whole.
        tolerance: a choice is wrong for the gate if its error exceeds the quantile by more than this.
        damping_tolerance: the same for the damping.
        tolerance_unit: what the tolerances are measured in: `data`, the units of the data, as in the released code; or
            `output`, the root mean square of the layer's output in the batch, so that the scale of the data is
            without effect.
        probe_window: of `probe`: backward passes in which each pixel tries one other expert, before it decides.
        probe_confidence: of `probe`: by how many standard errors the trial must be in favour of the other expert.
    """

    training_rule: TrainingRule = "rc"
    rc_weight: float = 1.0
    error_quantile: float = 0.3
    damping: float | None = 0.0
    tolerance: float = 1e-5
    damping_tolerance: float = 1e-3
    tolerance_unit: ToleranceUnit = "data"
    probe_window: int = 8
    probe_confidence: float = 0.0

    def __post_init__(self) -> None:
        if self.training_rule not in TRAINING_RULES:
            raise ValueError(f"training_rule must be one of {', '.join(TRAINING_RULES)}, got {self.training_rule!r}")
        if self.probe_window < 1:
            raise ValueError(f"probe_window must be at least 1, got {self.probe_window}")
        if not 0.0 <= self.error_quantile <= 1.0:
            raise ValueError(f"error_quantile must be in [0, 1], got {self.error_quantile}")
        if self.damping is not None and not 0.0 <= self.damping <= 1.0:
            raise ValueError(f"damping must be in [0, 1], or None to leave the error whole, got {self.damping}")
        for name in ("rc_weight", "tolerance", "damping_tolerance", "probe_confidence"):
            # `not >=` refuses NaN too.
            if not getattr(self, name) >= 0.0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.tolerance_unit not in TOLERANCE_UNITS:
            raise ValueError(f"tolerance_unit must be one of {', '.join(TOLERANCE_UNITS)}, got {self.tolerance_unit!r}")

    def paused(self) -> RoutingTraining:
        """The same, but the gate stays as it is and the error whole."""
        return replace(self, training_rule="none", damping=None)

    def with_unit(self, size: float) -> RoutingTraining:
        """The same in data units, where one unit of the tolerances is `size` of them."""
        return replace(
            self,
            tolerance=self.tolerance * size,
            damping_tolerance=self.damping_tolerance * size,
            tolerance_unit="data",
        )
