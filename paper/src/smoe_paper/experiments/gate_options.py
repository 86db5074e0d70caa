"""The gates of SMoE layers as options of recipes. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from smoe.options import BiasOwner, GateInit, Order


@dataclass(frozen=True)
class GateOptions:
    """SMoE layers and their gates.

    Attributes:
        expert_ratio: Experts in the bank for each filter of the layer that is replaced or stands before.
        gate: `tensor`, a table of scores; `factorised`, a few numbers for each pixel; `coarse`, a table for cells of
            4 x 4 pixels, interpolated; `random`, a table that stays as it starts.
        gate_init: Start of the gate: `kaiming` (white noise), `paper`, `smooth`, or `uniform`, the first expert
            everywhere.
        correlation_length: Correlation length of a smooth start in pixels; None for an eighth of the rows.
        order: Order of the selected experts: `score`, `index`, or `families`.
        rank: Numbers for each pixel of a factorised gate.
        bias: Owner of the biases: `slot`, one for each output channel, where the layer it stands for has them; or
            `expert`, one for each expert.
        local_affine: Multiply each output channel by a learned number at each pixel, and add another.
    """

    expert_ratio: float = 2.0
    gate: Literal["tensor", "factorised", "coarse", "random"] = "tensor"
    gate_init: GateInit = "kaiming"
    correlation_length: float | None = None
    order: Order = "score"
    rank: int = 8
    bias: BiasOwner = "slot"
    local_affine: bool = False

    def __post_init__(self) -> None:
        if not self.expert_ratio >= 1.0:
            raise ValueError(f"expert_ratio must be at least 1, as many experts as filters, got {self.expert_ratio}")
        if self.correlation_length is not None and self.gate_init != "smooth":
            raise ValueError(f"correlation_length belongs to gate_init='smooth', but gate_init is {self.gate_init!r}")
        if self.rank < 1:
            raise ValueError(f"rank must be at least 1, got {self.rank}")
