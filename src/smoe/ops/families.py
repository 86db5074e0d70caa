"""The straight-through gradient over families of experts.

A family is a softmax over its candidates of which the largest alone is computed in forward. In backward, the score of
candidate k receives

    pi_k (D_k - sum_j pi_j D_j) / temperature,  D_k = sum over samples and outputs of error * output of candidate k,

with the probabilities pi of the softmax: the gradient that the scores would have if the softmax mixed the outputs,
taken where the selected experts serve. Adding the same number to all D of a family changes nothing.
"""

from __future__ import annotations

import torch


def family_sizes(num_experts: int, num_families: int) -> list[int]:
    """Number of experts in each family: near-equal, the larger ones first."""
    size, larger = divmod(num_experts, num_families)
    return [size + (family < larger) for family in range(num_families)]


def family_gradient(
    scores: torch.Tensor, products: torch.Tensor, num_families: int, temperature: torch.Tensor | float
) -> torch.Tensor:
    """The gradient at the scores.

    Args:
        scores: `(1, X, P)`.
        products: D of each expert, `(1, X, P)`, up to a number for each family and pixel.
        num_families: E.
        temperature: Temperature of the softmax.

    Returns:
        `(1, X, P)`.
    """
    by_family, (scores, products) = _pad(num_families, scores[0], products[0].to(scores.dtype))
    probability = (scores / temperature).softmax(dim=1)
    mean = (probability * products).sum(dim=1, keepdim=True)
    gradient = (probability * (products - mean) / temperature).flatten(0, 1)
    return (gradient if by_family is None else gradient[by_family])[None]


def _pad(num_families: int, scores: torch.Tensor, products: torch.Tensor):
    """Scores and products `(X, P)` as `(E, K, P)`, and the place of each expert in them if families differ in size."""
    num_experts = scores.shape[0]
    if num_experts % num_families == 0:
        return None, [values.unflatten(0, (num_families, -1)) for values in (scores, products)]
    sizes = family_sizes(num_experts, num_families)
    places = torch.cat([torch.arange(size) + family * sizes[0] for family, size in enumerate(sizes)])
    places = places.to(scores.device)
    padded = [
        torch.full((num_families * sizes[0], scores.shape[1]), fill, dtype=values.dtype, device=values.device)
        .index_copy_(0, places, values)
        .unflatten(0, (num_families, -1))
        for fill, values in ((-torch.inf, scores), (0.0, products))
    ]
    return places, padded


def slot_products(error: torch.Tensor, outputs: torch.Tensor, expert_channels: int) -> torch.Tensor:
    """Sum over samples and an expert's outputs of error times output, `(E, P)`, in at least float32.

    Args:
        error: `(B, E * F, P)`.
        outputs: `(B, E * F, P)`.
        expert_channels: F.
    """
    total = torch.zeros(error.shape[1:], dtype=torch.promote_types(error.dtype, torch.float32), device=error.device)
    # One sample after the other, so that no product of the size of the batch is stored.
    for sample, output in zip(error, outputs, strict=True):
        total.addcmul_(sample.to(total.dtype), output.to(total.dtype))
    return total if expert_channels == 1 else total.unflatten(0, (-1, expert_channels)).sum(dim=1)
