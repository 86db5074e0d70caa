"""Groups of pixels and their shares of the experts: the start of a fixed gate and of a gate with a prior."""

from __future__ import annotations

import torch

from smoe.nn.grid_checks import check_grid


def expert_membership(groups: torch.Tensor, num_experts: int, num_families: int = 1) -> torch.Tensor:
    """How much each pixel belongs to the group that each expert serves.

    Args:
        groups: Map `(*grid)` as for `group_membership`.
        num_experts: X.
        num_families: Families, each of which is dealt to the groups apart.

    Returns:
        `(X, *grid)` in [0, 1], float32.
    """
    membership = group_membership(groups)
    return membership[group_of_expert(num_experts, len(membership), num_families).to(membership.device)]


def group_membership(groups: torch.Tensor) -> torch.Tensor:
    """How much each pixel belongs to each group.

    Args:
        groups: `(*grid)`: group numbers from 0 up, or a fraction in [0, 1], such as that of land, which makes two
            groups: group 0 with membership 1 - fraction and group 1 with membership fraction.

    Returns:
        `(G, *grid)` in [0, 1], float32.
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
    if not fraction.is_meta:
        _check_fraction(fraction)
    return torch.stack([1.0 - fraction, fraction]).float()


def _check_fraction(fraction: torch.Tensor) -> None:
    if fraction.isnan().any():
        raise ValueError(f"the map of fractions has {int(fraction.isnan().sum())} NaN; fill them before making a gate")
    low, high = (float(bound) for bound in fraction.aminmax())
    if low < 0.0 or high > 1.0:
        raise ValueError(
            f"a map of fractions must lie in [0, 1], got [{low}, {high}]; for group numbers give an integer map"
        )


def _number_membership(groups: torch.Tensor) -> torch.Tensor:
    groups = groups.long()
    if int(groups.min()) < 0:
        raise ValueError(f"group numbers start at 0, got {int(groups.min())}")
    num_groups = int(groups.max()) + 1
    return torch.stack([groups == group for group in range(num_groups)]).float()
