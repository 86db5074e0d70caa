"""Auxiliary losses of the routing (paper appendix), and gates with noise and normalised scores."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import nn

from smoe.nn import RoutedLayer, SpatialGate
from smoe.ops import Routing, top_experts

Normalisation = Literal["none", "softmax", "abs", "abs_softmax"]


def normalise_scores(scores: torch.Tensor, normalisation: Normalisation) -> torch.Tensor:
    """Normalises `(1 or B, X, P)` over the experts; `abs_softmax` takes the absolute value first."""
    if normalisation in ("abs", "abs_softmax"):
        scores = scores.abs()
    return scores.softmax(dim=1) if normalisation in ("softmax", "abs_softmax") else scores


class ScoreGate(SpatialGate):
    """Adds independent normal noise to the scores of another gate in training mode, and normalises them.

    Every sample draws its own noise, so the routing of a noisy tensor gate differs between samples while it trains.

    Args:
        gate: Gate whose scores receive the noise.
        std: Standard deviation of the noise; 1 / num_experts if None, 0 for none.
        normalisation: `none`, `softmax`, `abs` or `abs_softmax`, over the experts and after the noise.
    """

    def __init__(self, gate: SpatialGate, std: float | None = None, normalisation: Normalisation = "none") -> None:
        super().__init__(gate.num_experts, gate.num_selected, order=gate.order)
        if isinstance(gate, ScoreGate) or (std is not None and not std >= 0.0):
            raise ValueError(f"a ScoreGate needs a gate of another kind and a std of at least 0, got {gate}, {std}")
        if normalisation not in get_args(Normalisation):
            raise ValueError(
                f"normalisation must be one of {', '.join(get_args(Normalisation))}, got {normalisation!r}"
            )
        self.gate = gate
        self.std = 1.0 / gate.num_experts if std is None else std
        self.normalisation: Normalisation = normalisation
        self.looks_at_input = gate.looks_at_input
        # Scores before the noise, with it, and its standard deviation, in the last pass.
        self.last: tuple[torch.Tensor, torch.Tensor, float] | None = None

    @property
    def spatial_shape(self) -> tuple[int, ...] | None:
        return self.gate.spatial_shape

    @property
    def _can_draw(self) -> bool:
        return False

    def raw_scores(self, input: torch.Tensor | None = None) -> torch.Tensor:
        return self.gate.raw_scores(input)

    def route(self, input: torch.Tensor | None) -> Routing:
        clean = self.gate.route(input).scores
        noisy, std = clean, self.std if self.training and input is not None else 0.0
        if std and input is not None:
            noise = torch.randn((len(input), *clean.shape[1:]), dtype=clean.dtype, device=clean.device)
            noisy = clean + std * noise
        self.last = (clean, noisy, std)
        scores = normalise_scores(noisy, self.normalisation)
        return Routing(top_experts(scores, self.num_selected, self.order), scores)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "last": None}

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, std={self.std:g}, normalisation={self.normalisation!r}"


def squared_variation(per_expert: torch.Tensor) -> torch.Tensor:
    """Square of the coefficient of variation over the experts, `variance / mean ** 2`, of the population.

    With the variance of the population, as in V-MoE, a single expert has no variation.
    """
    return per_expert.var(dim=-1, correction=0) / per_expert.mean(dim=-1) ** 2


def _sum_per_expert(values: torch.Tensor) -> torch.Tensor:
    return values.sum(dim=(0, 2))


def importance_loss(weights: torch.Tensor) -> torch.Tensor:
    """Squared coefficient of variation of the experts' importances, their weights summed over samples and pixels.

    Args:
        weights: Normalised routing weights `(1 or B, X, P)`; not raw scores, whose mean may be 0.
    """
    return squared_variation(_sum_per_expert(weights))


def _last_selected(deciding: torch.Tensor, num_selected: int) -> torch.Tensor:
    """The score at each pixel above or at which an expert is selected, `(B, 1, P)`."""
    if num_selected == 1:
        return deciding.amax(dim=1, keepdim=True)  # on a CPU, topk takes many times as long
    return deciding.topk(num_selected, dim=1).values[:, num_selected - 1 :]


def _within_ten(deviations: torch.Tensor) -> torch.Tensor:
    """Standard deviations, those beyond ten as ten: a probability of 1e-23.

    Derivatives further out are denormal numbers, which add nothing to any sum and take many times as long to multiply.
    """
    return deviations.clamp(-10.0, 10.0)


def load_loss(
    clean: torch.Tensor,
    noisy: torch.Tensor,
    num_selected: int,
    noise_std: float,
    normalisation: Normalisation = "none",
) -> torch.Tensor:
    """Squared coefficient of variation of the experts' loads.

    An expert's load is the probability of being chosen for other noise, summed over samples and
    pixels.

    Args:
        clean: Scores before the noise, `(1 or B, X, P)`.
        noisy: Scores that decided, `(B, X, P)`.
        num_selected: E.
        noise_std: Standard deviation of the noise.
        normalisation: Normalisation of the gate; with an absolute value, a strongly negative score is selected too.
    """
    if not noise_std > 0.0:
        raise ValueError("the load loss is defined only with routing noise: give the gate a ScoreGate with noise")
    takes_absolute = normalisation in ("abs", "abs_softmax")
    # The softmax keeps the order of the scores, so the threshold is taken before it.
    threshold = _last_selected(noisy.detach().abs() if takes_absolute else noisy.detach(), num_selected)
    # `ndtr`, the normal distribution function, without the checks of torch.distributions.
    probability = torch.special.ndtr(_within_ten((clean - threshold) / noise_std))
    if takes_absolute:
        probability = probability + torch.special.ndtr(_within_ten((-threshold - clean) / noise_std))
    return squared_variation(_sum_per_expert(probability))


def spatial_agreement_loss(weights: torch.Tensor) -> torch.Tensor:
    """Standard deviation of the weights over the batch, averaged over pixels and summed over experts.

    Zero where all samples share their weights.

    Args:
        weights: `(1 or B, X, P)`.
    """
    if weights.shape[0] == 1:
        return weights.new_zeros(())
    # On a CPU, `std` along the first axis takes four times as long.
    variance = (weights - weights.mean(dim=0)).square().mean(dim=0)
    # The root has no derivative at 0; there, the loss has its least value.
    varies = variance > 0.0
    return (variance.where(varies, 1.0).sqrt() * varies).mean(dim=1).sum()


def auxiliary_loss(
    model: nn.Module,
    *,
    importance: bool = False,
    load: bool = False,
    spatial_agreement: bool = False,
    weight: float = 0.01,
) -> torch.Tensor:
    """Sum of the chosen auxiliary losses over all gates of a model, times `weight`.

    Call it after the forward pass in training mode and add it to the loss; its gradient reaches the gates beside that
    of the RC loss. A gate shared by several layers counts once, unless it looks at its input and has no noise.

    Args:
        model: Model with SMoE layers.
        importance: Add the importance loss of the normalised (softmax) weights.
        load: Add the load loss; every gate must be a `ScoreGate` with noise.
        spatial_agreement: Add the spatial agreement loss.
        weight: Factor of the sum.
    """
    if not (importance or load or spatial_agreement):
        raise ValueError("choose at least one of importance, load, spatial_agreement")
    layers = [module for module in model.modules() if isinstance(module, RoutedLayer)]
    if not layers:
        raise ValueError(f"{type(model).__name__} holds no SMoE layer")
    routings: dict[int, tuple[SpatialGate, torch.Tensor]] = {}
    for layer in layers:
        gate, routing = layer.gate, layer._scored_routing()
        if routing is None:
            raise ValueError("no forward pass in training mode yet: call the model before its auxiliary loss")
        is_apart = gate.looks_at_input and not isinstance(gate, ScoreGate)
        routings[id(layer) if is_apart else id(gate)] = (gate, routing.scores)
    losses: list[torch.Tensor] = []
    for gate, scores in routings.values():
        of_gate = gate.last if isinstance(gate, ScoreGate) else None
        clean, noisy, std = (scores, scores, 0.0) if of_gate is None else of_gate
        normalisation: Normalisation = gate.normalisation if isinstance(gate, ScoreGate) else "none"
        if importance:
            takes_absolute = normalisation in ("abs", "abs_softmax")
            losses.append(importance_loss(normalise_scores(clean, "abs_softmax" if takes_absolute else "softmax")))
        if load:
            losses.append(load_loss(clean, noisy, gate.num_selected, std, normalisation))
        if spatial_agreement:
            losses.append(spatial_agreement_loss(scores))
    return weight * torch.stack(losses).sum()
