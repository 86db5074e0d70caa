"""The options of the layers that have names, and how routing learns. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

PaddingMode = Literal["zeros", "circular", "longitude"]
PADDING_MODES: tuple[PaddingMode, ...] = get_args(PaddingMode)

Order = Literal["score", "index"]
ORDERS: tuple[Order, ...] = get_args(Order)

Normalization = Literal["none", "softmax", "abs", "abs_softmax"]
NORMALIZATIONS: tuple[Normalization, ...] = get_args(Normalization)

GateInit = Literal["kaiming", "paper", "smooth"]
GATE_INITS: tuple[GateInit, ...] = get_args(GateInit)

Combiner = Literal["rows_and_columns", "table", "input"]
COMBINERS: tuple[Combiner, ...] = get_args(Combiner)

CombinerNormalization = Literal["softmax", "norm", "none"]
COMBINER_NORMALIZATIONS: tuple[CombinerNormalization, ...] = get_args(CombinerNormalization)


ToleranceUnit = Literal["data", "output"]
TOLERANCE_UNITS: tuple[ToleranceUnit, ...] = get_args(ToleranceUnit)


@dataclass(frozen=True)
class RoutingTraining:
    """How the routing learns (paper sections 2.2 and 2.3).

    Attributes:
        rc_loss: train the gate by routing classification, and by nothing else; otherwise straight-through.
        rc_weight: factor of the RC loss.
        error_quantile: quantile of a sample's errors above which a choice is wrong.
        damping: factor of the error that wrongly chosen experts learn from; None leaves it whole.
        tolerance: a choice is wrong for the gate if its error exceeds the quantile by more than this.
        damping_tolerance: the same for the damping.
        tolerance_unit: what the tolerances are measured in: `data`, the units of the data, as in the released code; or
            `output`, the root mean square of the layer's output in the batch, so that the scale of the data is
            without effect.
    """

    rc_loss: bool = True
    rc_weight: float = 1.0
    error_quantile: float = 0.3
    damping: float | None = 0.0
    tolerance: float = 1e-5
    damping_tolerance: float = 1e-3
    tolerance_unit: ToleranceUnit = "data"

    def __post_init__(self) -> None:
        if not 0.0 <= self.error_quantile <= 1.0:
            raise ValueError(f"error_quantile must be in [0, 1], got {self.error_quantile}")
        if self.damping is not None and not 0.0 <= self.damping <= 1.0:
            raise ValueError(f"damping must be in [0, 1], or None to leave the error whole, got {self.damping}")
        for name in ("rc_weight", "tolerance", "damping_tolerance"):
            # `not >=` refuses NaN too.
            if not getattr(self, name) >= 0.0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.tolerance_unit not in TOLERANCE_UNITS:
            raise ValueError(f"tolerance_unit must be one of {', '.join(TOLERANCE_UNITS)}, got {self.tolerance_unit!r}")

    def paused(self) -> RoutingTraining:
        """A rule of the same kind that leaves the gate as it is and the error whole."""
        return replace(self, rc_loss=True, rc_weight=0.0, damping=None)

    def with_unit(self, size: float) -> RoutingTraining:
        """The same in data units, where one unit of the tolerances is `size` of them."""
        return replace(
            self,
            tolerance=self.tolerance * size,
            damping_tolerance=self.damping_tolerance * size,
            tolerance_unit="data",
        )
