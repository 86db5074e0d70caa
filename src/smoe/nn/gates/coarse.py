"""Coarse routing: scores that are learned on a coarser grid and interpolated to the pixels.

At 0.25 degrees, a table of the scores of 256 experts has 266 million numbers. Regions are larger than pixels: with one
number for 4 x 4 pixels the table has 17 million, each of which learns from all pixels around it.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from smoe.nn.gates.banded import BandedGate
from smoe.nn.gates.groups import group_membership, group_of_expert
from smoe.nn.gates.random_start import START_STD, check_scale, check_start, check_strength, draw_start
from smoe.nn.gates.scaled_gradient import scale_gradient
from smoe.nn.grid_checks import check_grid
from smoe.ops.interpolation import interpolate_grid
from smoe.options import GateInit, Normalization, Order


class CoarseGate(BandedGate):
    """Scores of a coarse grid, interpolated linearly between the centres of its cells, shared by all samples.

    Args:
        num_experts: X, the number of experts in the bank.
        num_selected: E, the number of experts selected at each pixel.
        spatial_shape: Sizes of the layer's output grid, such as rows and columns.
        factor: Pixels for each cell of the coarse grid, along each axis. An axis of n pixels has n / factor cells,
            rounded up, which divide it equally.
        coarse_shape: Sizes of the coarse grid, in place of `factor`.
        wraps: Whether each axis is a circle, as longitudes are, or one answer for all axes: the last cell is then next
            to the first one.
        scale: Factor of the scores, as that of a `FactorisedGate`: a larger one lets the gate change faster beside the
            experts.
        init: `kaiming`: independent random numbers. `smooth`: random fields. `uniform`: all scores 0, so that every
            pixel takes the first expert of each family.
        correlation_length: Correlation length of the smooth fields in cells; an eighth of the shorter side if None.
        order: `families`, or the paper's selections `score` and `index`.
        normalization: `none`, `softmax`, `abs` or `abs_softmax`.
        device: Device of the scores.
        dtype: Dtype of the scores.

    Example:
        >>> gate = CoarseGate(256, 128, (721, 1440), wraps=(False, True))
        >>> gate.values.shape
        torch.Size([256, 181, 360])
    """

    def __init__(
        self,
        num_experts: int,
        num_selected: int,
        spatial_shape: tuple[int, ...],
        *,
        factor: int = 4,
        coarse_shape: tuple[int, ...] | None = None,
        wraps: bool | tuple[bool, ...] = False,
        scale: float = 10.0,
        init: GateInit = "kaiming",
        correlation_length: float | None = None,
        order: Order = "families",
        normalization: Normalization = "none",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_experts, num_selected, order=order, normalization=normalization)
        check_scale(scale)
        check_start(init, correlation_length)
        self.grid = check_grid(spatial_shape)
        self.wraps = _of_axes(wraps, len(self.grid))
        self.scale = scale
        self.init: GateInit = init
        self.correlation_length = correlation_length
        shape = _coarse_shape(self.grid, factor, coarse_shape)
        self.values = nn.Parameter(torch.empty(num_experts, *shape, device=device, dtype=dtype))
        self.reset_parameters()

    @classmethod
    def from_prior(
        cls, groups: torch.Tensor, num_experts: int, num_selected: int, strength: float = 2.0, **options
    ) -> CoarseGate:
        """A gate that starts with each group's pixels preferring that group's share of the experts.

        It is an ordinary gate afterwards and can learn away from the prior.

        Args:
            groups: Map `(*grid)` of group numbers, or of a fraction in [0, 1] such as land, at all pixels; a cell has
                the mean of its pixels.
            num_experts: X, the number of experts in the bank.
            num_selected: E, the number of experts selected at each pixel.
            strength: Difference of the scores of a pixel's own share and of others, in standard deviations of the
                random start.
            **options: Further arguments of `CoarseGate`.
        """
        check_strength(strength)
        groups = torch.as_tensor(groups)
        gate = cls(num_experts, num_selected, tuple(groups.shape), **options)
        membership = group_membership(groups)
        for axis, size in enumerate(gate.coarse_shape, start=1):
            cells = torch.tensor_split(membership, size, dim=axis)
            membership = torch.cat([cell.mean(dim=axis, keepdim=True) for cell in cells], dim=axis)
        of_expert = group_of_expert(num_experts, len(membership), num_selected if gate.order == "families" else 1)
        with torch.no_grad():
            gate.values.add_(strength * START_STD / gate.scale * membership[of_expert].to(gate.values))
        return gate

    @property
    def spatial_shape(self) -> tuple[int, ...]:
        """Sizes of the grid the gate was made for."""
        return self.grid

    @property
    def coarse_shape(self) -> tuple[int, ...]:
        """Sizes of the coarse grid."""
        return tuple(self.values.shape[1:])

    def change_grid(self, spatial_shape: tuple[int, ...]) -> None:
        """Lets the gate serve another grid over the same area; what it has learned stays as it is.

        Args:
            spatial_shape: Sizes of the new grid.
        """
        grid = check_grid(spatial_shape)
        if len(grid) != len(self.grid):
            raise ValueError(f"the gate has {len(self.grid)} axes, but the new grid is {grid}")
        self.grid = grid
        self.restart_memory(self.num_pixels)

    def reset_parameters(self) -> None:
        """Draws the scores anew."""
        draw_start(self.values, self.init, self.correlation_length)
        with torch.no_grad():
            self.values.mul_(START_STD / self.scale)

    @property
    def gradient_gain(self) -> float:
        """A cell has the mean gradient of its pixels."""
        return math.sqrt(torch.Size(self.coarse_shape).numel() / self.num_pixels) / self.scale

    def row_parameters(self) -> tuple[nn.Parameter, ...]:
        """The scores of the coarse grid."""
        return (self.values,)

    def scores_of(self, rows: tuple[torch.Tensor, ...], common: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """The scores of the coarse grid, interpolated."""
        del common
        num_cells = torch.Size(self.coarse_shape).numel()
        values = scale_gradient(rows[0], num_cells / (self.scale**2 * self.num_pixels))
        return interpolate_grid(self.scale * values, self.grid, wraps=self.wraps).flatten(1)

    def extra_repr(self) -> str:
        """The numbers that `repr` shows."""
        return (
            f"{super().extra_repr()}, spatial_shape={self.spatial_shape}, coarse_shape={self.coarse_shape}, "
            f"wraps={self.wraps}, scale={self.scale:g}"
        )


def _of_axes(wraps: bool | tuple[bool, ...], num_axes: int) -> tuple[bool, ...]:
    if isinstance(wraps, bool):
        return (wraps,) * num_axes
    if len(wraps) != num_axes:
        raise ValueError(f"wraps must be one answer or {num_axes}, one for each axis, got {wraps}")
    return tuple(map(bool, wraps))


def _coarse_shape(grid: tuple[int, ...], factor: int, given: tuple[int, ...] | None) -> tuple[int, ...]:
    if given is None:
        if factor < 1:
            raise ValueError(f"factor must be at least 1, got {factor}")
        return tuple(-(-size // factor) for size in grid)
    shape = check_grid(given)
    if len(shape) != len(grid) or any(cells > size for cells, size in zip(shape, grid, strict=True)):
        raise ValueError(f"coarse_shape must be at most spatial_shape {grid} along each axis, got {shape}")
    return shape
