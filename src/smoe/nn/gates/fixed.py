"""Gates that do not learn: a region map known beforehand, or random scores frozen at the start."""

from __future__ import annotations

import torch

from smoe.nn.gates.gate import SpatialGate
from smoe.nn.gates.groups import expert_membership
from smoe.nn.gates.tensor import TensorGate
from smoe.options import Order


class FixedGate(SpatialGate):
    """Scores that stay as given; a buffer, so they move and are saved with the layer.

    Args:
        scores: Scores `(X, *grid)`.
        num_selected: E, the number of experts to select at each pixel.
        order: Order of the selected experts: `families`, `score` or `index`.
    """

    scores: torch.Tensor

    def __init__(self, scores: torch.Tensor, num_selected: int, *, order: Order = "score") -> None:
        if scores.ndim < 2 or not scores.is_floating_point():
            raise ValueError(f"scores must be floating (X, *grid), got {scores.dtype} of shape {tuple(scores.shape)}")
        super().__init__(scores.shape[0], num_selected, order=order)
        self.register_buffer("scores", scores.detach().clone())

    @classmethod
    def from_region_map(
        cls, region_map: torch.Tensor, num_experts: int | None = None, num_selected: int = 1
    ) -> FixedGate:
        """Each region's pixels use that region's share of the experts.

        With as many experts as regions, which is the default, pixels of region r use expert r.

        Args:
            region_map: Region numbers `(*grid)`, integers from 0 up.
            num_experts: X, the number of experts in the bank.
            num_selected: E, at most a region's share of the experts.
        """
        region_map = torch.as_tensor(region_map)
        if region_map.is_floating_point():
            raise ValueError(f"a region map holds integers, got {region_map.dtype}")
        num_regions = int(region_map.max()) + 1
        num_experts = num_regions if num_experts is None else num_experts
        membership = expert_membership(region_map, num_experts)
        if num_selected > num_experts // num_regions:
            raise ValueError(
                f"{num_regions} regions share {num_experts} experts, {num_experts // num_regions} at least for each, "
                f"but num_selected is {num_selected}"
            )
        return cls(membership, num_selected)

    @classmethod
    def random(
        cls, num_experts: int, num_selected: int, spatial_shape: tuple[int, ...], expert_channels: int = 1, **options
    ) -> FixedGate:
        """Random scores, frozen: the start of a `TensorGate` with the same arguments."""
        start = TensorGate(num_experts, num_selected, spatial_shape, expert_channels, **options)
        return cls(start.scores, num_selected, order=start.order)

    @property
    def spatial_shape(self) -> tuple[int, ...]:
        """Sizes of the grid the gate was made for."""
        return tuple(self.scores.shape[1:])

    def raw_scores(self, input: torch.Tensor | None = None) -> torch.Tensor:
        """The scores given at the start."""
        del input
        return self.scores
