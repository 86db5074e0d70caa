"""How gates start: random numbers, smooth random fields, or groups of pixels that are known."""

from __future__ import annotations

import math

import torch

from smoe.nn._routed_layer import check_grid
from smoe.options import GateInit


def host_normal(shape: torch.Size | tuple[int, ...], generator: torch.Generator, like: torch.Tensor) -> torch.Tensor:
    """Normal random numbers of a generator of the CPU, on the device and in the dtype of `like`.

    A copy from pinned memory does not wait for what the device has to do before it; one from other memory does.
    """
    noise = torch.randn(shape, generator=generator)
    if like.is_cuda:
        noise = noise.pin_memory()
    return noise.to(like.device, like.dtype, non_blocking=True)


def smooth_fields(shape: tuple[int, ...], correlation_length: float) -> torch.Tensor:
    """Gaussian random fields of mean near 0 and standard deviation 1 over the whole tensor.

    The width of a plane is periodic, so that a globe has no seam; its height is not, so that the poles stay apart. No
    axis of a line or a volume is periodic.

    Args:
        shape: `(X, *grid)`, X independent fields.
        correlation_length: Distance in pixels at which the correlation has fallen to exp(-1/2).

    Returns:
        `(X, *grid)`, float32.
    """
    if not correlation_length > 0.0:
        raise ValueError(f"correlation_length must be positive, got {correlation_length}")
    num_fields, *grid = shape
    # Noise blurred by a Gaussian of width s correlates like a Gaussian of width s * sqrt(2).
    blur = correlation_length / math.sqrt(2.0)
    margin = math.ceil(4 * blur)
    is_plane = len(grid) == 2
    margins = [0 if is_plane and axis == 1 else margin for axis in range(len(grid))]
    noise = torch.randn(num_fields, *(size + 2 * extra for size, extra in zip(grid, margins, strict=True)))
    axes = tuple(range(1, noise.ndim))
    squared = torch.zeros(())
    for axis in axes:
        frequency = (torch.fft.rfftfreq if axis == axes[-1] else torch.fft.fftfreq)(noise.shape[axis])
        squared = squared[..., None] + frequency**2
    transfer = torch.exp(-2.0 * (math.pi * blur) ** 2 * squared)
    field = torch.fft.irfftn(torch.fft.rfftn(noise, dim=axes) * transfer, s=noise.shape[1:], dim=axes)
    for axis, size, extra in zip(axes, grid, margins, strict=True):
        field = field.narrow(axis, extra, size)
    spread = field.std(correction=0)
    # One expert on one pixel has no spread.
    return torch.where(spread > 0.0, field / spread, field)


START_STD = 0.1
"""Standard deviation of the scores of a random start: small beside the temperature 1 of the straight-through rule, so
that all candidates of a family stay likely."""

_INITS = ("uniform", "kaiming", "smooth")


def check_start(init: GateInit, correlation_length: float | None, inits: tuple[str, ...] = _INITS) -> None:
    """Refuses a start that a gate does not have, and a correlation length without smooth fields."""
    if init not in inits:
        raise ValueError(f"init must be one of {', '.join(inits)}, got {init!r}")
    if correlation_length is not None and init != "smooth":
        raise ValueError(f"correlation_length belongs to init='smooth', but init is {init!r}")


def check_scale(scale: float) -> None:
    """Refuses a factor of the scores that is not positive and finite."""
    if not 0.0 < scale < math.inf:
        raise ValueError(f"scale must be positive and finite, got {scale}")


def check_strength(strength: float) -> None:
    """Refuses a negative strength of a prior."""
    if not strength >= 0.0:
        raise ValueError(f"strength must not be negative, got {strength}")


@torch.no_grad()
def draw_start(values: torch.Tensor, init: GateInit, correlation_length: float | None) -> None:
    """Fills values `(N, *grid)` with zeros (`uniform`), or with random numbers of standard deviation 1.

    They are independent (`kaiming`) or `smooth` fields, whose correlation length is an eighth of the shorter side if
    None.
    """
    if init == "uniform":
        values.zero_()
    elif init == "smooth":
        values.copy_(smooth_fields(tuple(values.shape), correlation_length or min(values.shape[1:]) / 8))
    else:
        values.normal_()


def expert_membership(groups: torch.Tensor, num_experts: int, num_families: int = 1) -> torch.Tensor:
    """How much each pixel belongs to the group that each expert serves, `(X, *grid)` in [0, 1], float32.

    Each family is dealt to the groups of the map `(*grid)` apart.
    """
    membership = group_membership(groups)
    return membership[group_of_expert(num_experts, len(membership), num_families).to(membership.device)]


def group_membership(groups: torch.Tensor) -> torch.Tensor:
    """How much each pixel belongs to each group, `(G, *grid)` in [0, 1], float32.

    The groups `(*grid)` are numbers from 0 up, or a fraction in [0, 1], such as that of land, which makes two: group 0
    with membership 1 - fraction and group 1 with membership fraction.
    """
    check_grid(tuple(groups.shape))
    return _fraction_membership(groups) if groups.is_floating_point() else _number_membership(groups)


def group_of_expert(num_experts: int, num_groups: int, num_families: int = 1) -> torch.Tensor:
    """The group `(X,)` that each expert serves.

    The experts of a family are dealt to the groups in order and in near-equal shares: with 256 experts in one family
    and two groups, experts 0-127 serve group 0. With as many experts as groups, expert g serves group g.
    """
    families = torch.tensor_split(torch.arange(num_experts), num_families)
    smallest = min(len(family) for family in families)
    if smallest < num_groups:
        of_family = "" if num_families == 1 else " of each family"
        raise ValueError(f"{num_groups} groups need at least {num_groups} experts{of_family}, got {smallest}")
    return torch.cat(
        [
            torch.full_like(share, group)
            for family in families
            for group, share in enumerate(torch.tensor_split(family, num_groups))
        ]
    )


def _fraction_membership(fraction: torch.Tensor) -> torch.Tensor:
    if not fraction.is_meta and fraction.isnan().any():
        raise ValueError(f"the map of fractions has {int(fraction.isnan().sum())} NaN; fill them before making a gate")
    if not fraction.is_meta and not bool(((fraction >= 0.0) & (fraction <= 1.0)).all()):
        low, high = (float(bound) for bound in fraction.aminmax())
        raise ValueError(
            f"a map of fractions must lie in [0, 1], got [{low}, {high}]; for group numbers give an integer map"
        )
    return torch.stack([1.0 - fraction, fraction]).float()


def _number_membership(groups: torch.Tensor) -> torch.Tensor:
    groups = groups.long()
    if int(groups.min()) < 0:
        raise ValueError(f"group numbers start at 0, got {int(groups.min())}")
    num_groups = int(groups.max()) + 1
    return torch.stack([groups == group for group in range(num_groups)]).float()
