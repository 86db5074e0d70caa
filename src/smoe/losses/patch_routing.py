"""The auxiliary losses of V-MoE's gate, importance and load (Riquelme et al., 2021, appendix A.2).

Each is a squared coefficient of variation over the experts, of the population, in each group of tokens; the groups are
averaged.
"""

from __future__ import annotations

import torch
from torch import nn

from smoe.losses.squared_variation import squared_variation
from smoe.nn._patch_moe import PatchMoE


def patch_importance_loss(scores: torch.Tensor) -> torch.Tensor:
    """Variation of the experts' importances, their probabilities summed over the tokens of a group.

    Args:
        scores: Scores of the gate before the noise, `(groups, tokens of a group, X)`.
    """
    return squared_variation(scores.softmax(dim=-1).sum(dim=1)).mean()


def patch_load_loss(clean: torch.Tensor, noisy: torch.Tensor, num_selected: int, noise_std: float) -> torch.Tensor:
    """Variation of the experts' loads, the mean over a group of the probability of being chosen.

    That is the probability that the expert, its noise drawn anew, exceeds the smallest score that was chosen. The
    gradient goes through that threshold too, as in V-MoE.

    Args:
        clean: Scores of the gate before the noise, `(groups, tokens of a group, X)`.
        noisy: Scores that decided, of the same shape.
        num_selected: Number of experts chosen for each token.
        noise_std: Standard deviation of the noise.
    """
    if not noise_std > 0.0:
        raise ValueError(
            f"the load loss is defined only with routing noise: noise_std must be positive, got {noise_std}"
        )
    threshold = noisy.topk(num_selected, dim=-1).values[..., -1:]
    probability = torch.special.ndtr((clean - threshold) / noise_std)
    return squared_variation(probability.mean(dim=1)).mean()


def patch_moe_loss(model: nn.Module, weight: float = 0.01) -> torch.Tensor:
    """Mean of importance and load loss, summed over the `PatchMoE` layers of a model, times `weight`.

    Call it after the forward pass in training mode and add it to the loss.

    Args:
        model: Model with `PatchMoE` layers whose gates have noise.
        weight: Factor of the sum.
    """
    layers = [module for module in model.modules() if isinstance(module, PatchMoE)]
    if not layers:
        raise ValueError(f"{type(model).__name__} holds no PatchMoE layer")
    losses: list[torch.Tensor] = []
    for layer in layers:
        scores = layer.last_scores
        if scores is None:
            raise ValueError("no forward pass in training mode yet: call the model before its patch_moe_loss")
        importance = patch_importance_loss(scores.clean)
        load = patch_load_loss(scores.clean, scores.noisy, layer.num_selected, scores.noise_std)
        losses.append(0.5 * (importance + load))
    return weight * torch.stack(losses).sum()
