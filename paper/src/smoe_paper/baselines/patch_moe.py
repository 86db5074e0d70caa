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

# An expert's capacity is rounded up to a multiple of this.
_CAPACITY_STEP = 4


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
    """Scores of the experts before and with noise, `(groups, tokens of a group, X)`, at least float32."""

    clean: torch.Tensor
    noisy: torch.Tensor
    noise_std: float


class PatchMoE(nn.Module):
    """Tokens `(B, N, D)` to `(B, N, D)`, each through the experts its gate chose.

    The probabilities of the experts are the softmax of the gate's scores, with noise in training. A token's output is
    the sum over its most probable experts of probability times output; the chosen probabilities are not made to sum to
    1 again. Of equally probable experts the one with the lower number wins.

    Each sample is a group; V-MoE's own groups are eight images. In each group an expert serves as many tokens as its
    capacity: first those whose first choice it is, then those whose second choice it is, and so on; among equal choices
    in token order. A choice beyond the capacity is dropped and adds zero to its token.

    Args:
        capacity_factor: Room of an expert relative to an even split of the choices, in evaluation too.
        noise_std: Standard deviation of the normal noise on the scores in training; 1 / num_experts if None.
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        num_experts: int,
        num_selected: int = 1,
        *,
        capacity_factor: float = 1.05,
        noise_std: float | None = None,
    ) -> None:
        super().__init__()
        self.num_experts, self.num_selected = num_experts, num_selected
        self.capacity_factor = capacity_factor
        self.noise_std = 1.0 / num_experts if noise_std is None else noise_std
        self.gate = nn.Linear(width, num_experts, bias=False)
        self.experts = nn.ModuleList(FeedForward(width, hidden) for _ in range(num_experts))
        self.last_scores: PatchScores | None = None
        """Scores of the last forward pass in training mode, which `patch_moe_loss` reads; None before it."""

    def capacity(self, group_size: int) -> int:
        """The number of tokens of a group that one expert can serve, rounded up to a multiple of 4."""
        needed = math.ceil(group_size * self.num_selected * self.capacity_factor / self.num_experts)
        return math.ceil(needed / _CAPACITY_STEP) * _CAPACITY_STEP

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        scores = self._score(tokens)
        if self.training:
            self.last_scores = scores
        # A group is a sample to `top_experts`, and its tokens are the pixels.
        probabilities = scores.noisy.softmax(dim=-1).transpose(1, 2)
        indices = top_experts(probabilities, self.num_selected).long()
        place = place_in_turn(indices, self.num_experts)
        return self._apply_experts(tokens, indices, probabilities.gather(1, indices), place).view(tokens.shape)

    def _score(self, grouped: torch.Tensor) -> PatchScores:
        # Half precision would make ties of distinct scores.
        dtype = torch.promote_types(grouped.dtype, torch.float32)
        device_type = grouped.device.type
        has_autocast = torch.amp.is_autocast_available(device_type)
        with torch.autocast(device_type, enabled=False) if has_autocast else nullcontext():
            clean = F.linear(grouped.to(dtype), self.gate.weight.to(dtype))
        if not self.training or self.noise_std == 0.0:
            return PatchScores(clean, clean, 0.0)
        return PatchScores(clean, clean + self.noise_std * torch.randn_like(clean), self.noise_std)

    def _apply_experts(
        self, grouped: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor, place: torch.Tensor
    ) -> torch.Tensor:
        tokens = grouped.flatten(0, 1)
        num_groups, num_selected, group_size = indices.shape
        is_served = place < self.capacity(group_size)
        token_of_choice = torch.arange(len(tokens), device=tokens.device).view(num_groups, 1, group_size)
        token_of_choice = token_of_choice.expand(-1, num_selected, -1).flatten()
        expert_of_choice = indices.where(is_served, self.num_experts).flatten()
        rows: list[torch.Tensor] = []
        outputs: list[torch.Tensor] = []
        for number, expert in enumerate(self.experts):
            choices = (expert_of_choice == number).nonzero().squeeze(1)
            rows.append(token_of_choice.index_select(0, choices))
            # An expert nobody chose runs on no tokens, so that its gradient is zero and not missing.
            served = expert(tokens.index_select(0, rows[-1]))
            outputs.append(served * weights.flatten().index_select(0, choices).unsqueeze(1).to(served.dtype))
        weighted = torch.cat(outputs)
        return weighted.new_zeros(tokens.shape).index_add(0, torch.cat(rows), weighted)

    def __getstate__(self) -> dict[str, object]:
        # The last scores belong to a graph of the past, which can be neither copied nor pickled.
        return {**self.__dict__, "last_scores": None}


def place_in_turn(indices: torch.Tensor, num_experts: int) -> torch.Tensor:
    """The place of each choice `(groups, num_selected, tokens of a group)` in the queue of its expert, from 0.

    First choices come before second ones, and equal choices in token order.
    """
    in_turn = indices.long().flatten(1)
    is_expert = F.one_hot(in_turn, num_experts)
    place = is_expert.cumsum(dim=1).gather(2, in_turn.unsqueeze(2)).squeeze(2)
    return (place - 1).view_as(indices)


def patch_importance_loss(scores: torch.Tensor) -> torch.Tensor:
    """Variation of the experts' importances, their probabilities summed over the tokens of a group."""
    return squared_variation(scores.softmax(dim=-1).sum(dim=1)).mean()


def patch_load_loss(clean: torch.Tensor, noisy: torch.Tensor, num_selected: int, noise_std: float) -> torch.Tensor:
    """Variation of the experts' loads, the mean over a group of the probability of being chosen.

    That is the probability that the expert, its noise drawn anew, exceeds the smallest score that was chosen. The
    gradient goes through that threshold too, as in V-MoE.
    """
    if not noise_std > 0.0:
        raise ValueError(f"the load loss is defined only with routing noise, got noise_std {noise_std}")
    threshold = noisy.topk(num_selected, dim=-1).values[..., -1:]
    probability = torch.special.ndtr((clean - threshold) / noise_std)
    return squared_variation(probability.mean(dim=1)).mean()


def patch_moe_loss(model: nn.Module, weight: float = 0.01) -> torch.Tensor:
    """Mean of importance and load loss, summed over the `PatchMoE` layers of a model, times `weight`.

    Call it after the forward pass in training mode and add it to the loss.
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
