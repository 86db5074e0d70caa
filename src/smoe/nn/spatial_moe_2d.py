"""The SMoE layer with convolution filters as experts (paper section 2)."""

from __future__ import annotations

import torch

from smoe.nn.filter_bank import FilterBank
from smoe.nn.gates.gate import SpatialGate
from smoe.nn.grid_checks import (
    check_kernel_size,
    check_output_grid,
    check_padding_mode,
    check_positive,
    check_spatial_shape,
)
from smoe.ops.grid_conv import grid_conv2d
from smoe.ops.padding import output_grid
from smoe.ops.routed_conv import routed_conv2d
from smoe.options import BiasOwner, Order, PaddingMode
from smoe.rules import Damping, Rule


class SpatialMoE2d(FilterBank):
    """A bank of convolution filters, of which a gate selects some at every pixel.

    Output `(B, E * F, H', W')`; with stride 1 the grid is kept.

    Args:
        in_channels: C, the number of channels of the input.
        num_experts: X, the number of experts in the bank.
        num_selected: E, the number of experts selected at each pixel.
        kernel_size: Odd size of the filters, one number or rows and columns.
        expert_channels: F, the number of outputs per expert.
        stride: Stride of both axes; the gate has the output grid.
        padding_mode: `zeros`, `circular`, or `longitude` (the width wraps, zeros on the height).
        gate: Gate that selects the experts; without one, the default gate of the rule is made for `spatial_shape`.
        spatial_shape: Rows and columns of the output grid.
        bias: Add a learned number to the outputs: `"expert"` (or True), one for each output of each expert, so that the
            routing decides the offset of a pixel too; `"slot"`, one for each output channel, whichever expert serves
            it; False, none. It starts at 0. None for `"expert"` with the default rule or families, and else False.
        local_affine: Multiply each output channel by a learned number at each pixel, and add another. They start at 1
            and 0. Needs a gate that was made for a grid.
        weighted: Multiply the experts' outputs by their scores.
        order: Order of the output channels: `families`, `score`, or `index` for ascending expert numbers; None for that
            of the rule. A gate that is given has its own.
        rule: How the gate learns: a rule of `smoe.rules`, or its short form such as `"probe(window=4)"`. None for the
            default: probing for a single output channel, straight-through for families of experts, and routing
            classification for a gate that looks at its input or has another order.
        damping: Damping of the error of wrongly selected experts: a `smoe.rules.Damping` or a factor. If None, use that
            of the rule; only the paper's presets have one.
        device: Device of the weights.
        dtype: Dtype of the weights.

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
        bias: bool | BiasOwner | None = None,
        local_affine: bool = False,
        weighted: bool = False,
        order: Order | None = None,
        rule: Rule | str | None = None,
        damping: Damping | str | float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_positive(stride=stride)
        sizes = check_kernel_size(kernel_size)
        check_padding_mode(padding_mode)
        super().__init__(
            in_channels,
            num_experts,
            num_selected,
            sizes,
            None if spatial_shape is None else check_spatial_shape(spatial_shape),
            expert_channels=expert_channels,
            gate=gate,
            bias=bias,
            local_affine=local_affine,
            weighted=weighted,
            order=order,
            rule=rule,
            damping=damping,
            device=device,
            dtype=dtype,
        )
        self.kernel_size = sizes
        self.stride = stride
        self.padding_mode: PaddingMode = padding_mode

    def check_input(self, input: torch.Tensor) -> None:
        """Refuses an input that is not floating-point, or whose output grid is not that of the gate."""
        super().check_input(input)
        made_for = self.gate.spatial_shape
        if made_for is not None and input.ndim == 4 and not self.gate.looks_at_input:
            check_output_grid(input, self.stride, made_for)

    def apply_bank(self, source: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        """Convolves each pixel with the filters of its experts."""
        return routed_conv2d(
            source,
            self.weight,
            indices,
            expert_channels=self.expert_channels,
            stride=self.stride,
            padding_mode=self.padding_mode,
            check_indices=False,
        )

    def apply_filters(self, source: torch.Tensor, filters: torch.Tensor) -> torch.Tensor:
        """Convolves with filters `(O, C, kh, kw)` everywhere."""
        return grid_conv2d(source, filters, stride=self.stride, padding_mode=self.padding_mode)

    def output_grid(self, input: torch.Tensor | None) -> tuple[int, int]:
        """Rows and columns of the output for an input."""
        if input is None:
            raise ValueError("give the input: the gate was made for no grid")
        return output_grid(input.shape[2], input.shape[3], self.stride)

    def extra_repr(self) -> str:
        """The numbers that `repr` shows."""
        return (
            f"{self.in_channels}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"padding_mode={self.padding_mode!r}, {super().extra_repr()}"
        )
