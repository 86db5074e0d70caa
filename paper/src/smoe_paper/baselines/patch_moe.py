"""V-MoE's layer of experts, which routes the patches of an image, and its auxiliary losses (Riquelme et al., 2021)."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from smoe.ops import top_experts
from smoe_paper.baselines.routing_losses import squared_variation


class FeedForward(nn.Module):
    """`(..., width)` to `(..., width)`: linear, GELU, linear; Glorot-uniform weights, biases from zero."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.widen = nn.Linear(width, hidden)
        self.narrow = nn.Linear(hidden, width)
        for linear in (self.widen, self.narrow):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.narrow(nn.functional.gelu(self.widen(tokens)))


class PatchScores(NamedTuple):
    clean: torch.Tensor
    noisy: torch.Tensor
    noise_std: float


class PatchMoE(nn.Module):
    """Tokens `(B, N, D)` to `(B, N, D)`, each through the expert that its gate chose.

    The probabilities of the experts are the softmax of the gate's scores, with noise of the standard deviation
    1 / num_experts in training. A token's output is its most probable expert's output times the probability; of equal
    ones the expert with the lower number wins. Each sample is a group; V-MoE's own groups are eight images. In each
    group an expert serves as many tokens as its capacity, in their order; those beyond have the output zero.

    Args:
        capacity_factor: Room of an expert relative to an even split of the choices, in evaluation too.
    """

    def __init__(self, width: int, hidden: int, num_experts: int, *, capacity_factor: float = 1.05) -> None:
        super().__init__()
        self.num_experts, self.capacity_factor = num_experts, capacity_factor
        self.noise_std = 1.0 / num_experts
        self.gate = nn.Linear(width, num_experts, bias=False)
        self.experts = nn.ModuleList(FeedForward(width, hidden) for _ in range(num_experts))
        self.last_scores: PatchScores | None = None
        """Scores of the last forward pass in training mode, which `patch_moe_loss` reads; None before it."""

    def capacity(self, group_size: int) -> int:
        """The number of tokens of a group that one expert can serve, rounded up to a multiple of 4."""
        return math.ceil(math.ceil(group_size * self.capacity_factor / self.num_experts) / 4) * 4

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        scores = self._score(tokens)
        if self.training:
            self.last_scores = scores
        probabilities = scores.noisy.softmax(dim=-1)
        # A group is a sample to `top_experts`, and its tokens are the pixels.
        chosen = top_experts(probabilities.transpose(1, 2), 1).long().squeeze(1)
        place = F.one_hot(chosen, self.num_experts).cumsum(dim=1).gather(2, chosen.unsqueeze(2)).squeeze(2)
        served = chosen.where(place <= self.capacity(tokens.shape[1]), self.num_experts).flatten()
        weights, flat = probabilities.gather(2, chosen.unsqueeze(2)).flatten(0, 1), tokens.flatten(0, 1)
        rows = [(served == number).nonzero().squeeze(1) for number in range(self.num_experts)]
        # An expert nobody chose runs on no tokens, so that its gradient is zero and not missing.
        outputs = [expert(flat.index_select(0, own)) for expert, own in zip(self.experts, rows, strict=True)]
        all_rows = torch.cat(rows)
        weighted = torch.cat(outputs) * weights.index_select(0, all_rows).to(outputs[0].dtype)
        return weighted.new_zeros(flat.shape).index_add(0, all_rows, weighted).view(tokens.shape)

    def _score(self, tokens: torch.Tensor) -> PatchScores:
        # Half precision would make ties of distinct scores.
        dtype = torch.promote_types(tokens.dtype, torch.float32)
        device_type = tokens.device.type
        has_autocast = torch.amp.is_autocast_available(device_type)
        with torch.autocast(device_type, enabled=False) if has_autocast else nullcontext():
            clean = F.linear(tokens.to(dtype), self.gate.weight.to(dtype))
        if not self.training:
            return PatchScores(clean, clean, 0.0)
        return PatchScores(clean, clean + self.noise_std * torch.randn_like(clean), self.noise_std)

    def __getstate__(self) -> dict[str, object]:
        # The last scores belong to a graph of the past, which can be neither copied nor pickled.
        return {**self.__dict__, "last_scores": None}


def patch_importance_loss(scores: torch.Tensor) -> torch.Tensor:
    """Variation of the experts' importances, their probabilities summed over the tokens of a group."""
    return squared_variation(scores.softmax(dim=-1).sum(dim=1)).mean()


def patch_load_loss(clean: torch.Tensor, noisy: torch.Tensor, noise_std: float) -> torch.Tensor:
    """Variation of the experts' loads, the mean over a group of the probability of being chosen.

    That is the probability that the expert, with other noise, exceeds the score that was chosen. The gradient goes
    through that threshold too, as in V-MoE.
    """
    threshold = noisy.amax(dim=-1, keepdim=True)
    probability = torch.special.ndtr((clean - threshold) / noise_std)
    return squared_variation(probability.mean(dim=1)).mean()


def patch_moe_loss(model: nn.Module, weight: float = 0.01) -> torch.Tensor:
    """Mean of importance and load loss, summed over the `PatchMoE` layers of a model, times `weight`.

    Call it after the forward pass in training mode and add it to the loss.
    """
    losses: list[torch.Tensor] = []
    for layer in (module for module in model.modules() if isinstance(module, PatchMoE)):
        scores = layer.last_scores
        if scores is None:
            raise ValueError("no forward pass in training mode yet: call the model before its patch_moe_loss")
        losses.append(0.5 * (patch_importance_loss(scores.clean) + patch_load_loss(*scores)))
    return weight * torch.stack(losses).sum()
