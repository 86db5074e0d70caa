"""The gates of SMoE layers as options of recipes. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from smoe.options import GateInit, Order


@dataclass(frozen=True)
class GateOptions:
    """The gate of SMoE layers.

    Attributes:
        expert_ratio: experts in the bank for each filter of the layer that is replaced or stands before.
        gate: `tensor` learns; `random` stays as it starts.
        gate_init: start of the gate: `kaiming` (white noise), `paper`, or `smooth`.
        correlation_length: of a smooth start, in pixels; None for an eighth of the rows.
        order: of the selected experts: by score or by number.
    """

    expert_ratio: float = 2.0
    gate: Literal["tensor", "random"] = "tensor"
    gate_init: GateInit = "kaiming"
    correlation_length: float | None = None
    order: Order = "score"

    def __post_init__(self) -> None:
        if not self.expert_ratio >= 1.0:
            raise ValueError(f"expert_ratio must be at least 1, as many experts as filters, got {self.expert_ratio}")
        if self.correlation_length is not None and self.gate_init != "smooth":
            raise ValueError(f"correlation_length belongs to gate_init='smooth', but gate_init is {self.gate_init!r}")
