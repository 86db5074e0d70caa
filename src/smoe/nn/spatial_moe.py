"""The SMoE layer with convolution filters as experts (paper section 2)."""

from __future__ import annotations

import torch
from torch import nn

from smoe.nn.gates.gate import SpatialGate
from smoe.nn.gates.tensor import TensorGate
from smoe.nn.grid_checks import check_kernel_size, check_padding_mode, check_positive
from smoe.nn.routed_layer import RoutedLayer
from smoe.ops.routed_conv import routed_conv2d
from smoe.options import Order, PaddingMode, RoutingTraining, ToleranceUnit, TrainingRule

# Of a restarted expert, relative to the filter it copies: enough to tell the two apart.
_RESTART_NOISE = 0.02


class SpatialMoE2d(RoutedLayer):
    """A bank of convolution filters, of which a gate picks some at every pixel.

    Output `(B, E * F, H', W')`; with stride 1 the grid is kept. Channel 0 is each pixel's favourite expert.

    Args:
        in_channels: C.
        num_experts: X, experts in the bank.
        num_selected: E, experts chosen at each pixel.
        kernel_size: odd, one number or rows and columns.
        expert_channels: F, outputs per expert.
        stride: of both axes; the gate lives on the output grid.
        padding_mode: `zeros`, `circular`, or `longitude` (the width wraps, zeros on the height).
        gate: who serves which pixel; without one, a `TensorGate` for `spatial_shape`.
        spatial_shape: rows and columns of the output grid.
        bias: add a learned number to each output channel, whichever expert serves it. It starts at 0.
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
        device: of the weights.
        dtype: of the weights.

    Example:
        >>> layer = SpatialMoE2d(1, num_experts=3, num_selected=1, spatial_shape=(64, 64))
        >>> layer(torch.randn(8, 1, 64, 64)).shape
        torch.Size([8, 1, 64, 64])
    """

    def __init__(
        self,
        in_channels: int,
        num_experts: int,
        num_selected: int,
        kernel_size: int | tuple[int, int] = 3,
        *,
        expert_channels: int = 1,
        stride: int = 1,
        padding_mode: PaddingMode = "zeros",
        gate: SpatialGate | None = None,
        spatial_shape: tuple[int, int] | None = None,
        bias: bool = False,
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
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        gate = resolve_gate(gate, num_experts, num_selected, spatial_shape, expert_channels, device, dtype)
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
        check_positive(in_channels=in_channels, stride=stride)
        self.in_channels = in_channels
        self.kernel_size = check_kernel_size(kernel_size)
        self.stride = stride
        self.padding_mode: PaddingMode = check_padding_mode(padding_mode)
        self.weight = nn.Parameter(
            torch.empty(num_experts * expert_channels, in_channels, *self.kernel_size, device=device, dtype=dtype)
        )
        self.bias = (
            nn.Parameter(torch.zeros(num_selected * expert_channels, device=device, dtype=dtype)) if bias else None
        )
        if self.weight.device != self.num_nonfinite_errors.device:
            self.num_nonfinite_errors = self.num_nonfinite_errors.to(self.weight.device)
        self.reset_parameters()

    @property
    def out_channels(self) -> int:
        """E * F, as a convolution calls it."""
        return self.num_selected * self.expert_channels

    def reset_parameters(self) -> None:
        """Draws the experts anew (Kaiming uniform) and zeroes the bias; the gate may be shared, so it is left alone."""
        nn.init.kaiming_uniform_(self.weight, nonlinearity="relu")
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """`(B, C, H, W)` to `(B, E * F, H', W')`; channels `[s * F, (s + 1) * F)` are each pixel's s-th expert."""
        output = super().forward(input)
        return output if self.bias is None else output + self.bias.to(output.dtype)[:, None, None]

    def apply_experts(self, input: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        """Convolves each pixel with the filters of its experts."""
        return routed_conv2d(
            input,
            self.weight,
            indices,
            expert_channels=self.expert_channels,
            stride=self.stride,
            padding_mode=self.padding_mode,
            check_indices=False,
        )

    def apply_challengers(
        self, input: torch.Tensor, indices: torch.Tensor, challengers: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As its base says; the challengers alone, because they need no backward pass."""
        selected = self.apply_experts(input, indices)
        with torch.no_grad():
            return selected, self.apply_experts(input, challengers)

    @torch.no_grad()
    def restart_expert(self, expert: int, source: int, generator: torch.Generator) -> None:
        """Makes an expert a copy of another with 2 % of noise; neither the bias nor the optimiser's state changes."""
        # `.data`: another graph may wait for its backward pass with these weights, and hardly used this expert.
        experts = self.weight.data.unflatten(0, (-1, self.expert_channels))
        noise = torch.randn(experts.shape[1:], generator=generator).to(experts)
        experts[expert] = experts[source] * (1.0 + _RESTART_NOISE * noise)

    def extra_repr(self) -> str:
        """The numbers that `repr` shows."""
        return (
            f"{self.in_channels}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"padding_mode={self.padding_mode!r}, {super().extra_repr()}"
        )


def resolve_gate(
    gate: SpatialGate | None,
    num_experts: int,
    num_selected: int,
    spatial_shape: tuple[int, int] | None,
    expert_channels: int,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> SpatialGate:
    """The gate given, checked against the layer's numbers, or a `TensorGate` made for them."""
    if gate is None:
        if spatial_shape is None:
            raise ValueError("give spatial_shape=(rows, columns) of the output grid, or a gate")
        return TensorGate(num_experts, num_selected, spatial_shape, expert_channels, device=device, dtype=dtype)
    if (gate.num_experts, gate.num_selected) != (num_experts, num_selected):
        raise ValueError(
            f"the gate selects {gate.num_selected} of {gate.num_experts} experts, but the layer is to select "
            f"{num_selected} of {num_experts}"
        )
    made_for = gate.spatial_shape
    if spatial_shape is not None and made_for is not None and tuple(spatial_shape) != made_for:
        raise ValueError(f"the gate was made for a grid of {made_for}, but spatial_shape is {tuple(spatial_shape)}")
    return gate
