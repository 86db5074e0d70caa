"""Groups of pixels and their shares of the experts: the start of a fixed gate and of a gate with a prior."""

from __future__ import annotations

import torch

from smoe.nn.grid_checks import check_spatial_shape


def expert_membership(groups: torch.Tensor, num_experts: int) -> torch.Tensor:
    """How much each pixel belongs to the group that each expert serves.

    The experts are dealt to the groups in order and in near-equal shares: with 256 experts and two groups, experts
    0-127 serve group 0. With as many experts as groups, expert g serves group g.

    Args:
        groups: `(H, W)`: group numbers from 0 up, or a fraction in [0, 1] (of land, say), which makes two groups: group
            0 with membership 1 - fraction and group 1 with membership fraction.
        num_experts: X, at least one for each group.

    Returns:
        `(X, H, W)` in [0, 1], float32.
    """
    if groups.ndim != 2:
        raise ValueError(f"groups must be a map (H, W), got shape {tuple(groups.shape)}")
    check_spatial_shape((groups.shape[0], groups.shape[1]))
    membership = _fraction_membership(groups) if groups.is_floating_point() else _number_membership(groups)
    num_groups = membership.shape[0]
    if num_experts < num_groups:
        raise ValueError(f"{num_groups} groups need at least {num_groups} experts, got {num_experts}")
    shares = torch.tensor_split(torch.arange(num_experts), num_groups)
    group_of_expert = torch.cat([torch.full_like(share, group) for group, share in enumerate(shares)])
    return membership[group_of_expert.to(membership.device)]


def _fraction_membership(fraction: torch.Tensor) -> torch.Tensor:
    if fraction.isnan().any():
        raise ValueError(f"the map of fractions has {int(fraction.isnan().sum())} NaN; fill them before making a gate")
    low, high = (float(bound) for bound in fraction.aminmax())
    if low < 0.0 or high > 1.0:
        raise ValueError(
            f"a map of fractions must lie in [0, 1], got [{low}, {high}]; for group numbers give an integer map"
        )
    return torch.stack([1.0 - fraction, fraction]).float()


def _number_membership(groups: torch.Tensor) -> torch.Tensor:
    groups = groups.long()
    if int(groups.min()) < 0:
        raise ValueError(f"group numbers start at 0, got {int(groups.min())}")
    num_groups = int(groups.max()) + 1
    return (groups == torch.arange(num_groups, device=groups.device)[:, None, None]).float()
