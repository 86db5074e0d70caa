"""The measure of imbalance that the auxiliary losses of a routing share."""

from __future__ import annotations

import torch


def squared_variation(per_expert: torch.Tensor) -> torch.Tensor:
    """Square of the coefficient of variation over the experts, `variance / mean ** 2`, of the population.

    With the variance of the population, as in V-MoE, a single expert has no variation.

    Args:
        per_expert: Importances or loads of the experts, `(..., X)`.

    Returns:
        `(...)`.
    """
    return per_expert.var(dim=-1, correction=0) / per_expert.mean(dim=-1) ** 2
