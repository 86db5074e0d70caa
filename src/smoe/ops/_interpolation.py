"""Takes fields and choices to another grid over the same area, or to other places."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
import torch.nn.functional as F


def _around(size: int, old_size: int, wraps: bool, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The two old pixels around each new centre `(2, size)`, and how far it is above the first, in pixels.

    Pixels are cells that divide the same length: the centre of pixel i of n is at (i + 1/2) / n.
    """
    # In double precision, because a rounded centre could fall on the wrong side of a half.
    centre = (torch.arange(size, dtype=torch.float64, device=device) + 0.5) * (old_size / size) - 0.5
    below = centre.floor()
    pair = torch.stack([below, below + 1.0]).long()
    return pair % old_size if wraps else pair.clamp(0, old_size - 1), centre - below


def interpolate_axis(field: torch.Tensor, size: int, dim: int = -1, *, wraps: bool = False) -> torch.Tensor:
    """Interpolates linearly along one axis, between the centres of pixels.

    Beyond the outermost centres the field is constant, or periodic if the axis wraps. This is `F.interpolate` with
    `align_corners=False`, for any axis and both borders. With the same size the field itself is returned.
    """
    if size < 1:
        raise ValueError(f"size must be at least 1, got {size}")
    old_size = field.shape[dim]
    if size == old_size:
        return field
    pair, above = _around(size, old_size, wraps, field.device)
    shape = [1] * field.ndim
    shape[dim] = size
    lower, upper = (field.index_select(dim, index) for index in pair)
    return torch.lerp(lower, upper, above.to(field.dtype).view(shape).expand_as(lower))


def interpolate_grid(field: torch.Tensor, grid: tuple[int, ...], wraps: Sequence[bool]) -> torch.Tensor:
    """Interpolates fields `(..., *old_grid)` to `(..., *grid)`, axis by axis. See `interpolate_axis`.

    The last axis is the first one: the axis that makes the field large is then copied in whole rows.
    """
    for axis in reversed(range(len(grid))):
        field = interpolate_axis(field, grid[axis], axis - len(grid), wraps=wraps[axis])
    return field


def pixels_around(
    old_grid: tuple[int, ...], grid: tuple[int, ...], wraps: Sequence[bool], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Distances, in old pixels, and flat numbers of the old pixels around each new one, `(P', 2 ** axes)`."""
    axes = [_around(new, old, wrap, device) for new, old, wrap in zip(grid, old_grid, wraps, strict=True)]
    distances, numbers = [], []
    # Along an axis that stays, each pixel has the place of one old pixel.
    for corner in itertools.product(*(range(1 + (new != old)) for new, old in zip(grid, old_grid, strict=True))):
        square, number = torch.zeros(1, dtype=torch.float64, device=device), torch.zeros(1, dtype=torch.int64)
        number = number.to(device)
        for side, (pair, above), size in zip(corner, axes, old_grid, strict=True):
            square = (square[:, None] + (above - side).square()).flatten()
            number = (number[:, None] * size + pair[side]).flatten()
        distances.append(square.sqrt())
        numbers.append(number)
    return torch.stack(distances, dim=1), torch.stack(numbers, dim=1)


def most_typical(numbers: torch.Tensor, distance: torch.Tensor, near: torch.Tensor) -> torch.Tensor:
    """For each new place, the old one of those near it whose numbers point most as theirs do on the whole, `(P',)`.

    The new place can then take what the old one chose, and never what none of them chose, as means of numbers of
    several sizes may. Old places count by the inverse square of their distance, each alike however large its numbers
    are; one in the new place counts alone.

    Args:
        numbers: Numbers of each old place, `(N, P)`.
        distance: Distances of the old places near each new one, `(P', K)`.
        near: Their numbers, `(P', K)`.
    """
    weight = distance.clamp(min=1e-12 * max(1.0, float(distance.max()))) ** -2.0
    weight = (weight / weight.sum(dim=1, keepdim=True)).to(numbers.device, numbers.dtype)
    near = near.to(numbers.device)
    directions = F.normalize(numbers, dim=0)
    mean = sum((directions[:, near[:, k]] * weight[:, k] for k in range(near.shape[1])), torch.zeros(()))
    likeness = [(directions[:, near[:, k]] * mean).sum(dim=0) for k in range(near.shape[1])]
    # Of equal ones the nearest.
    best = (torch.stack(likeness, dim=1) + 1e-5 * weight).argmax(dim=1, keepdim=True)
    return near.gather(1, best)[:, 0]


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
