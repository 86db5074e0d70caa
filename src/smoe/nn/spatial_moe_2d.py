"""The SMoE layer with convolution filters as experts (paper section 2)."""

from __future__ import annotations

import torch
from torch import nn

from smoe.nn.gates.gate import SpatialGate
from smoe.nn.grid_checks import check_kernel_size, check_padding_mode, check_positive
from smoe.nn.local_affine import LocalAffine
from smoe.nn.routed_layer import RoutedLayer, resolve_gate
from smoe.ops.families import slot_products
from smoe.ops.grid_conv import grid_conv2d
from smoe.ops.padding import output_grid
from smoe.ops.routed_bias import routed_bias
from smoe.ops.routed_conv import routed_conv2d
from smoe.ops.top_experts import family_members
from smoe.options import BIAS_OWNERS, BiasOwner, Order, PaddingMode
from smoe.rules import Damping, Rule

# Noise of a restarted expert, relative to the filter it copies: enough to tell the two apart.
_RESTART_NOISE = 0.02


class SpatialMoE2d(RoutedLayer):
    """A bank of convolution filters, of which a gate selects some at every pixel.

    Output `(B, E * F, H', W')`; with stride 1 the grid is kept. Channel 0 is each pixel's favourite expert.

    Args:
        in_channels: C, the number of channels of the input.
        num_experts: X, the number of experts in the bank.
        num_selected: E, the number of experts selected at each pixel.
        kernel_size: Odd size of the filters, one number or rows and columns.
        expert_channels: F, the number of outputs per expert.
        stride: Stride of both axes; the gate has the output grid.
        padding_mode: `zeros`, `circular`, or `longitude` (the width wraps, zeros on the height).
        gate: Gate that selects the experts; without one, a `TensorGate` is made for `spatial_shape`.
        spatial_shape: Rows and columns of the output grid.
        bias: Add a learned number to the outputs: `"expert"` (or True), one for each output of each expert, so that the
            routing decides the offset of a pixel too; `"slot"`, one for each output channel, whichever expert serves
            it; False, none. It starts at 0.
        local_affine: Multiply each output channel by a learned number at each pixel, and add another. They start at 1
            and 0. Needs a gate that was made for a grid.
        weighted: Multiply the experts' outputs by their scores.
        order: Order of the output channels: `score`, or `index` for ascending expert numbers. A gate that is given has
            its own.
        rule: How the gate learns: a rule of `smoe.rules`, or its short form such as `"probe(window=4)"`.
        damping: Damping of the error of wrongly selected experts: a `smoe.rules.Damping`, a factor, or None for that of
            the rule, which is none but for the paper's presets.
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
        bias: bool | BiasOwner = False,
        local_affine: bool = False,
        weighted: bool = False,
        order: Order | None = None,
        rule: Rule | str = "rc",
        damping: Damping | str | float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_positive(in_channels=in_channels, stride=stride)
        owns_gate = gate is None
        gate = resolve_gate(gate, num_experts, num_selected, spatial_shape, expert_channels, order, device, dtype)
        super().__init__(gate, expert_channels, weighted, rule, damping, owns_gate=owns_gate, device=device)
        self.in_channels = in_channels
        self.kernel_size = check_kernel_size(kernel_size)
        self.stride = stride
        self.padding_mode: PaddingMode = check_padding_mode(padding_mode)
        self.weight = nn.Parameter(
            torch.empty(num_experts * expert_channels, in_channels, *self.kernel_size, device=device, dtype=dtype)
        )
        if bias not in (True, False, *BIAS_OWNERS):
            raise ValueError(f"bias must be True, False, {' or '.join(map(repr, BIAS_OWNERS))}, got {bias!r}")
        self.bias_owner: BiasOwner | None = "expert" if bias is True else bias or None
        num_biases = (num_selected if self.bias_owner == "slot" else num_experts) * expert_channels
        self.bias = nn.Parameter(torch.zeros(num_biases, device=device, dtype=dtype)) if self.bias_owner else None
        self.affine = None
        if local_affine:
            if gate.spatial_shape is None:
                raise ValueError(f"local_affine needs a gate that was made for a grid, got {type(gate).__name__}")
            self.affine = LocalAffine(self.out_channels, gate.spatial_shape, device=device, dtype=dtype)
        if self.weight.device != self.signal.num_nonfinite.device:
            self.signal.to(self.weight.device)
        self.reset_parameters()

    @property
    def out_channels(self) -> int:
        """E * F, the number of output channels."""
        return self.num_selected * self.expert_channels

    def reset_parameters(self) -> None:
        """Draws the experts anew (Kaiming uniform) and zeroes the bias; the gate may be shared, so it is left alone."""
        nn.init.kaiming_uniform_(self.weight, nonlinearity="relu")
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        if self.affine is not None:
            self.affine.reset_parameters()

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """`(B, C, H, W)` to `(B, E * F, H', W')`; channels `[s * F, (s + 1) * F)` are each pixel's s-th expert."""
        output = super().forward(input)
        if self.bias is not None and self.bias_owner == "slot":
            output = output + self.bias.to(output.dtype)[:, None, None]
        return output if self.affine is None else self.affine(output)

    def select(self, source: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        """Convolves each pixel with the filters of its experts, and adds their bias."""
        output = routed_conv2d(
            source,
            self.weight,
            indices,
            expert_channels=self.expert_channels,
            stride=self.stride,
            padding_mode=self.padding_mode,
            check_indices=False,
        )
        if self.bias is None or self.bias_owner == "slot":
            return output
        bias = routed_bias(self.bias, indices, self.expert_channels)
        return output + bias.to(output.dtype).unflatten(2, output.shape[2:])

    @torch.no_grad()
    def candidate_products(self, source: torch.Tensor, error: torch.Tensor) -> torch.Tensor:
        """As its base says, by one convolution for each candidate of a family but the first.

        Only differences within a family matter, so the filters are those of a candidate less those of the first.
        """
        members = family_members(self.num_experts, self.num_selected, device=self.weight.device)
        experts = self.weight.unflatten(0, (-1, self.expert_channels))
        first = torch.zeros_like(experts[:1]) if self.weighted else experts[members[:, 0]]
        biases = None if self.bias is None or self.bias_owner == "slot" else self.bias.view(-1, self.expert_channels)
        flat_error = error.flatten(2)
        products = flat_error.new_zeros(
            self.num_experts, flat_error.shape[2], dtype=torch.promote_types(error.dtype, torch.float32)
        )
        for place in range(0 if self.weighted else 1, members.shape[1]):
            filters = (experts[members[:, place]] - first).flatten(0, 1).to(source.dtype)
            outputs = grid_conv2d(source, filters, stride=self.stride, padding_mode=self.padding_mode)
            found = slot_products(flat_error, outputs.flatten(2), self.expert_channels)
            if biases is not None:
                offset = biases[members[:, place]] - (0.0 if self.weighted else biases[members[:, 0]])
                total = flat_error.to(found.dtype).sum(dim=0).unflatten(0, (-1, self.expert_channels))
                found += (total * offset[:, :, None]).sum(dim=1)
            # Families that are smaller repeat their first expert, whose product is 0, or its own once more.
            products.index_copy_(0, members[:, place], found)
        return products[None]

    def output_grid(self, input: torch.Tensor | None) -> tuple[int, int]:
        """Rows and columns of the output for an input."""
        if input is None:
            raise ValueError("give the input: the gate was made for no grid")
        return output_grid(input.shape[2], input.shape[3], self.stride)

    @torch.no_grad()
    def restart_expert(
        self, expert: torch.Tensor, source: torch.Tensor, is_due: torch.Tensor, generator: torch.Generator
    ) -> None:
        """Makes an expert a copy of another with 2 % of noise; the optimiser's state does not change."""
        # `.data`: another graph may wait for its backward pass with these weights, and hardly used this expert.
        experts = self.weight.data.unflatten(0, (-1, self.expert_channels))
        noise = torch.randn(experts.shape[1:], generator=generator).to(experts)
        old, copied = (experts.index_select(0, number.view(1)) for number in (expert, source))
        experts.index_copy_(0, expert.view(1), torch.where(is_due, copied * (1.0 + _RESTART_NOISE * noise), old))
        if self.bias is not None and self.bias_owner == "expert":
            biases = self.bias.data.view(-1, self.expert_channels)
            old, copied = (biases.index_select(0, number.view(1)) for number in (expert, source))
            biases.index_copy_(0, expert.view(1), torch.where(is_due, copied, old))

    def extra_repr(self) -> str:
        """The numbers that `repr` shows."""
        return (
            f"{self.in_channels}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"padding_mode={self.padding_mode!r}, {super().extra_repr()}"
        )
