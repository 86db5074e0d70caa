"""The SMoE layer with any module as its experts: CoordConv filters, small networks (paper section 2)."""

from __future__ import annotations

import torch
from torch import nn

from smoe.nn.gates.gate import SpatialGate
from smoe.nn.routed_layer import RoutedLayer
from smoe.nn.spatial_moe import resolve_gate
from smoe.ops.gather_experts import gather_experts
from smoe.options import Order, RoutingTraining, ToleranceUnit, TrainingRule


class SpatialMoE(RoutedLayer):
    """Routes pixels to experts computed by a module of yours; gates and training as in `SpatialMoE2d`.

    All experts are computed everywhere and the chosen ones kept: a module cannot be asked for single pixels.

    Args:
        experts: `(B, ...)` to all experts' outputs `(B, X * F, H, W)`; channels `[x * F, (x + 1) * F)` are expert x's.
        num_experts: X.
        num_selected: E, experts chosen at each pixel.
        expert_channels: F, outputs per expert.
        gate: who serves which pixel; without one, a `TensorGate` for `spatial_shape`.
        spatial_shape: rows and columns of the output grid.
        weighted: multiply the experts' outputs by their scores.
        order: of the output channels: `score`, or `index` for ascending expert numbers.
        training_rule: what the gate learns from: `rc`, the routing classification loss, and nothing else; `probe`,
            trials of experts that are not selected; `end_to_end`, the error at its chosen experts, times their outputs
            if weighted; `none`, nothing. The rule's own numbers follow.
        rc_weight: factor of the RC loss.
        error_quantile: quantile of a sample's errors above which a choice is wrong.
        damping: factor of the error that wrongly chosen experts learn from; None leaves it whole.
        tolerance: of the RC loss, in units of `tolerance_unit`.
        damping_tolerance: of the damping, in units of `tolerance_unit`.
        tolerance_unit: `data`, or `output` for the root mean square of the layer's output in the batch, which needs no
            knowledge of the data's scale. It is meant for layers whose output a squared error compares with the data.
        probe_window: backward passes in which each pixel tries one other expert, before it decides.
        probe_confidence: by how many standard errors the trial must be in favour of the other expert.

    Example:
        >>> experts = smoe.CoordConv2d(1, 3)
        >>> layer = smoe.SpatialMoE(experts, num_experts=3, num_selected=1, spatial_shape=(64, 64))
    """

    def __init__(
        self,
        experts: nn.Module,
        num_experts: int,
        num_selected: int,
        *,
        expert_channels: int = 1,
        gate: SpatialGate | None = None,
        spatial_shape: tuple[int, int] | None = None,
        weighted: bool = False,
        order: Order = "score",
        training_rule: TrainingRule = "rc",
        rc_weight: float = 1.0,
        error_quantile: float = 0.3,
        damping: float | None = 0.0,
        tolerance: float = 1e-5,
        damping_tolerance: float = 1e-3,
        tolerance_unit: ToleranceUnit = "data",
        probe_window: int = 8,
        probe_confidence: float = 0.0,
    ) -> None:
        gate = resolve_gate(gate, num_experts, num_selected, spatial_shape, expert_channels, None, None)
        training = RoutingTraining(
            training_rule=training_rule,
            rc_weight=rc_weight,
            error_quantile=error_quantile,
            damping=damping,
            tolerance=tolerance,
            damping_tolerance=damping_tolerance,
            tolerance_unit=tolerance_unit,
            probe_window=probe_window,
            probe_confidence=probe_confidence,
        )
        super().__init__(gate, expert_channels, weighted, order, training)
        self.experts = experts

    def apply_experts(self, input: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        """Runs all experts and keeps the chosen ones."""
        outputs = self.experts(input)
        expected = self.num_experts * self.expert_channels
        if outputs.ndim != 4 or outputs.shape[1] != expected:
            raise ValueError(
                f"the experts must return (B, {expected}, H, W) for {self.num_experts} experts with "
                f"{self.expert_channels} outputs each, got shape {tuple(outputs.shape)}"
            )
        return gather_experts(outputs, indices, self.expert_channels)
