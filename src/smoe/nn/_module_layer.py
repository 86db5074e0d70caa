"""The SMoE layer with any module as its experts: CoordConv filters, small networks (paper section 2)."""

from __future__ import annotations

import torch
from torch import nn

from smoe.nn._filter_bank import resolve_default_rule, resolve_gate
from smoe.nn._gate import SpatialGate
from smoe.nn._routed_layer import RoutedLayer
from smoe.ops._families import slot_products
from smoe.ops._gather import gather_experts
from smoe.ops._routing import family_members
from smoe.options import Order
from smoe.rules import Damping, Rule


class SpatialMoE(RoutedLayer):
    """Routes pixels to experts computed by a module of yours; gates and rules as in `SpatialMoE2d`.

    All experts are computed everywhere and the selected ones kept: a module cannot be asked for single pixels.

    Args:
        experts: Module that maps `(B, ...)` to the outputs of all experts `(B, X * F, *grid)`; channels
            `[x * F, (x + 1) * F)` belong to expert x.
        num_experts: X, the number of experts.
        num_selected: E, the number of experts selected at each pixel.
        expert_channels: F, the number of outputs per expert.
        gate: Gate that selects the experts; without one, the default gate of the rule is made for
            `spatial_shape`.
        spatial_shape: Rows and columns of the output grid.
        weighted: Multiply the experts' outputs by their scores.
        order: Order of the output channels: `families`, `score`, or `index` for ascending expert numbers; None for that
            of the rule. A gate that is given has its own.
        rule: How the gate learns: a rule of `smoe.rules`, or its short form such as `"rc(weight=0.1)"`.
        damping: Damping of the error of wrongly selected experts: a `smoe.rules.Damping` or a factor. If None, use that
            of the rule; only the paper's presets have one.

    Example:
        >>> experts = torch.nn.Conv2d(1, 3, kernel_size=5, padding=2)
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
        order: Order | None = None,
        rule: Rule | str | None = None,
        damping: Damping | str | float | None = None,
    ) -> None:
        rule = resolve_default_rule(rule, gate, order)
        gate = resolve_gate(gate, rule, num_experts, num_selected, spatial_shape, expert_channels, order)
        super().__init__(gate, expert_channels, weighted, rule, damping)
        self.experts = experts

    def _check_input(self, input: torch.Tensor) -> None:
        """Accepts what the experts accept; a gate that looks at the input needs floating-point numbers."""
        if self.gate.looks_at_input:
            super()._check_input(input)

    def _prepare(self, input: torch.Tensor) -> torch.Tensor:
        outputs = self.experts(input)
        expected = self.gate.num_experts * self._expert_channels
        if outputs.ndim < 3 or outputs.shape[1] != expected:
            raise ValueError(
                f"the experts must return (B, {expected}, *grid) for {self.gate.num_experts} experts with "
                f"{self._expert_channels} outputs each, got shape {tuple(outputs.shape)}"
            )
        return outputs

    def _select(self, source: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        return gather_experts(source, indices, self._expert_channels)

    @torch.no_grad()
    def _candidate_products(
        self, source: torch.Tensor, error: torch.Tensor, families: slice, experts: slice, *compared: torch.Tensor
    ) -> torch.Tensor:
        members = family_members(self.gate.num_experts, self.gate.num_selected, device=source.device)[families]
        outputs = source.flatten(2).unflatten(1, (-1, self._expert_channels))
        flat_error = error.flatten(2).unflatten(1, (-1, self._expert_channels))[:, families].flatten(1, 2)
        del compared
        products = flat_error.new_zeros(
            experts.stop - experts.start,
            flat_error.shape[2],
            dtype=torch.promote_types(error.dtype, torch.float32),
        )
        for place in range(members.shape[1]):
            chosen = outputs[:, members[:, place]].flatten(1, 2)
            products.index_copy_(
                0, members[:, place] - experts.start, slot_products(flat_error, chosen, self._expert_channels)
            )
        return products[None]

    def _output_grid(self, input: torch.Tensor | None) -> tuple[int, ...]:
        if input is None:
            raise ValueError("give the input: the gate was made for no grid")
        return tuple(self.experts(input).shape[2:])
