"""Tensor routing: one learned score per expert and pixel, whatever the input (paper section 2.1)."""

from __future__ import annotations

import math

import torch
from torch import nn

from smoe.nn.gates.banded import BandedGate
from smoe.nn.gates.groups import expert_membership
from smoe.nn.gates.random_start import check_start, check_strength
from smoe.nn.gates.smooth_fields import smooth_fields
from smoe.nn.grid_checks import check_grid, check_positive
from smoe.options import GATE_INITS, GateInit, Normalization, Order


def kaiming_bound(num_experts: int, num_selected: int, expert_channels: int = 1) -> float:
    """Bound of a uniform Kaiming initialisation with fan-in E F / X: sqrt(3 X / (E F))."""
    return math.sqrt(3.0 * num_experts / (num_selected * expert_channels))


class TensorGate(BandedGate):
    """A learned tensor of scores `(X, *grid)`, shared by all samples.

    Args:
        num_experts: X, the number of experts in the bank.
        num_selected: E, the number of experts to select at each pixel.
        spatial_shape: Sizes of the layer's output grid, such as rows and columns, or a number of nodes.
        expert_channels: F, the number of outputs per expert; it sets the spread of the start.
        init: Start of the scores. `kaiming`: uniform within sqrt(3 X / (E F)). `paper`: uniform within 3 X / (E F), the
            bound that the paper prints. `smooth`: random fields of the same spread as `kaiming`, so that neighbouring
            pixels start with the same experts. `uniform`: all scores 0, so that ties select the first experts
            everywhere.
        correlation_length: Correlation length of the smooth fields, in pixels; an eighth of the shorter side if None.
        order: Order of the selected experts: `families`, `score` or `index`.
        normalization: `none`, `softmax`, `abs` or `abs_softmax`.
        device: Device of the scores.
        dtype: Dtype of the scores.
    """

    def __init__(
        self,
        num_experts: int,
        num_selected: int,
        spatial_shape: tuple[int, ...],
        expert_channels: int = 1,
        *,
        init: GateInit = "kaiming",
        correlation_length: float | None = None,
        order: Order = "score",
        normalization: Normalization = "none",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_experts, num_selected, order=order, normalization=normalization)
        check_positive(expert_channels=expert_channels)
        check_start(init, correlation_length, GATE_INITS)
        self.expert_channels = expert_channels
        self.init: GateInit = init
        self.correlation_length = correlation_length
        self.scores = nn.Parameter(torch.empty(num_experts, *check_grid(spatial_shape), device=device, dtype=dtype))
        self.reset_parameters()

    @classmethod
    def from_prior(
        cls,
        groups: torch.Tensor,
        num_experts: int,
        num_selected: int,
        strength: float = 2.0,
        expert_channels: int = 1,
        **options,
    ) -> TensorGate:
        """A gate that starts with each group's pixels preferring that group's share of the experts.

        It is an ordinary tensor gate afterwards and can learn away from the prior.

        Args:
            groups: Map `(*grid)` of group numbers, or of a fraction in [0, 1] such as land; see `expert_membership`.
            num_experts: X, the number of experts in the bank.
            num_selected: E, the number of experts to select at each pixel.
            strength: Strength of the preference, in units of the largest score of the random start (with `kaiming`, its
                bound). From 2 on, a pixel's own share starts above all other experts; towards 0 the prior fades into
                the random start.
            expert_channels: F, the number of outputs per expert.
            **options: Further arguments of `TensorGate`.
        """
        check_strength(strength)
        groups = torch.as_tensor(groups)
        gate = cls(num_experts, num_selected, tuple(groups.shape), expert_channels, **options)
        membership = expert_membership(groups, num_experts, num_selected if gate.order == "families" else 1)
        with torch.no_grad():
            gate.scores.add_(strength * gate.scores.abs().max() * membership.to(gate.scores))
        return gate

    @property
    def spatial_shape(self) -> tuple[int, ...]:
        """Sizes of the grid the gate was made for."""
        return tuple(self.scores.shape[1:])

    @property
    def bound(self) -> float:
        """The Kaiming bound of this gate."""
        return kaiming_bound(self.num_experts, self.num_selected, self.expert_channels)

    def reset_parameters(self) -> None:
        """Draws the scores anew."""
        with torch.no_grad():
            if self.init == "uniform":
                self.scores.zero_()
            elif self.init == "smooth":
                length = self.correlation_length or min(self.spatial_shape) / 8
                # A uniform distribution within the bound has the standard deviation bound / sqrt(3).
                self.scores.copy_(smooth_fields(tuple(self.scores.shape), length) * (self.bound / math.sqrt(3.0)))
            else:
                bound = self.bound if self.init == "kaiming" else self.bound**2
                self.scores.uniform_(-bound, bound)

    def row_parameters(self) -> tuple[nn.Parameter, ...]:
        """The learned tensor."""
        return (self.scores,)

    def scores_of(self, rows: tuple[torch.Tensor, ...], common: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Rows of the learned tensor."""
        del common
        return rows[0].flatten(1)

    def raw_scores(self, input: torch.Tensor | None = None) -> torch.Tensor:
        """The learned tensor."""
        del input
        return self.scores

    def extra_repr(self) -> str:
        """The numbers that `repr` shows."""
        return f"{super().extra_repr()}, spatial_shape={self.spatial_shape}"
