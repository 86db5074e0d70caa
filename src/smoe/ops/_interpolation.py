"""Interpolates fields to another grid over the same area."""

from __future__ import annotations

from typing import Literal, get_args

import torch

Interpolation = Literal["linear", "nearest"]


def interpolate_axis(
    field: torch.Tensor, size: int, dim: int = -1, *, mode: Interpolation = "linear", wraps: bool = False
) -> torch.Tensor:
    """Interpolates along one axis, between the centres of pixels.

    Pixels are cells that divide the same length: the centre of pixel i of n is at (i + 1/2) / n. Beyond the outermost
    centres the field is constant, or periodic if the axis wraps. This is `F.interpolate` with `align_corners=False`,
    for any axis and both borders. With the same size the field itself is returned.
    """
    if mode not in get_args(Interpolation):
        raise ValueError(f"mode must be one of {', '.join(get_args(Interpolation))}, got {mode!r}")
    if size < 1:
        raise ValueError(f"size must be at least 1, got {size}")
    old_size = field.shape[dim]
    if size == old_size:
        return field
    # In double precision, because a rounded centre could fall on the wrong side of a half.
    centre = (torch.arange(size, dtype=torch.float64, device=field.device) + 0.5) * (old_size / size) - 0.5
    below = centre.floor() if mode == "linear" else (centre - 0.5).ceil()
    weight = (centre - below if mode == "linear" else torch.zeros_like(centre)).to(field.dtype)
    first, second = (_into_axis(below.long() + step, old_size, wraps) for step in (0, 1))
    shape = [1] * field.ndim
    shape[dim] = size
    lower, upper = field.index_select(dim, first), field.index_select(dim, second)
    return torch.lerp(lower, upper, weight.view(shape).expand_as(lower))


def interpolate_grid(
    field: torch.Tensor,
    grid: tuple[int, ...],
    *,
    mode: Interpolation = "linear",
    wraps: tuple[bool, ...] = (False, False),
) -> torch.Tensor:
    """Interpolates fields `(..., *old_grid)` to `(..., *grid)`, axis by axis. See `interpolate_axis`.

    The last axis is the first one: the axis that makes the field large is then copied in whole rows.
    """
    for axis in reversed(range(len(grid))):
        field = interpolate_axis(field, grid[axis], axis - len(grid), mode=mode, wraps=wraps[axis])
    return field


def _into_axis(index: torch.Tensor, size: int, wraps: bool) -> torch.Tensor:
    return index % size if wraps else index.clamp(0, size - 1)


# Distances held at a time.
_CHUNK = 1 << 24


def nearest_places(old: torch.Tensor, new: torch.Tensor, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Distances and numbers of the nearest old places of each new one, `(N', number)`."""
    try:
        from scipy.spatial import cKDTree  # pyright: ignore[reportAttributeAccessIssue]
    except ImportError:
        parts = [
            torch.cdist(part, old, compute_mode="donot_use_mm_for_euclid_dist").topk(number, dim=1, largest=False)
            for part in new.split(max(1, _CHUNK // len(old)))
        ]
        distance, near = (torch.cat(part) for part in zip(*parts, strict=True))
        return distance, near
    distance, near = cKDTree(old.numpy()).query(new.numpy(), k=number)
    shape = (len(new), number)
    return torch.as_tensor(distance).reshape(shape), torch.as_tensor(near).reshape(shape).long()
