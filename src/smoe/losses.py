"""Auxiliary losses of the routing (paper appendix), the CRPS of a normal distribution, and the weights of latitudes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from smoe.nn._gate import SpatialGate, normalize_scores
from smoe.nn._routed_layer import RoutedLayer
from smoe.ops._routing import Routing
from smoe.options import Normalization

__all__ = [
    "auxiliary_loss",
    "gaussian_crps",
    "importance_loss",
    "latitude_weights",
    "load_loss",
    "spatial_agreement_loss",
]


def squared_variation(per_expert: torch.Tensor) -> torch.Tensor:
    """Square of the coefficient of variation over the experts, `variance / mean ** 2`, of the population.

    With the variance of the population, as in V-MoE, a single expert has no variation.
    """
    return per_expert.var(dim=-1, correction=0) / per_expert.mean(dim=-1) ** 2


def _sum_per_expert(values: torch.Tensor) -> torch.Tensor:
    """`(1 or B, X, P)` to `(X,)`."""
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
    normalization: Normalization = "none",
) -> torch.Tensor:
    """Squared coefficient of variation of the experts' loads.

    An expert's load is the probability of being chosen if the noise alone were drawn anew, summed over samples and
    pixels.

    Args:
        clean: Scores before the noise, `(1 or B, X, P)`.
        noisy: Scores that decided, `(B, X, P)`.
        num_selected: E.
        noise_std: Standard deviation of the noise.
        normalization: Normalisation of the gate; with an absolute value, a strongly negative score is selected too.
    """
    if not noise_std > 0.0:
        raise ValueError("the load loss is defined only with routing noise: wrap the gate in a NoisyGate")
    takes_absolute = normalization in ("abs", "abs_softmax")
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
    of the RC loss. A gate shared by several layers that does not look at its input counts once.

    Args:
        model: Model with SMoE layers.
        importance: Add the importance loss of the normalised (softmax) weights.
        load: Add the load loss; every gate must be a `NoisyGate`.
        spatial_agreement: Add the spatial agreement loss.
        weight: Factor of the sum.
    """
    if not (importance or load or spatial_agreement):
        raise ValueError("choose at least one of importance, load, spatial_agreement")
    layers = [module for module in model.modules() if isinstance(module, RoutedLayer)]
    if not layers:
        raise ValueError(f"{type(model).__name__} holds no SMoE layer")
    routings: dict[int, tuple[SpatialGate, Routing]] = {}
    for layer in layers:
        routing = layer._scored_routing()
        if routing is None:
            raise ValueError("no forward pass in training mode yet: call the model before its auxiliary loss")
        routings[id(layer) if layer.gate.looks_at_input else id(layer.gate)] = (layer.gate, routing)
    losses: list[torch.Tensor] = []
    for gate, routing in routings.values():
        takes_absolute = gate.normalization in ("abs", "abs_softmax")
        if importance:
            weights = normalize_scores(routing.clean, "abs_softmax" if takes_absolute else "softmax")
            losses.append(importance_loss(weights))
        if load:
            losses.append(
                load_loss(routing.clean, routing.noisy, gate.num_selected, routing.noise_std, gate.normalization)
            )
        if spatial_agreement:
            losses.append(spatial_agreement_loss(routing.scores))
    return weight * torch.stack(losses).sum()


def latitude_weights(latitude: Sequence[float] | np.ndarray) -> torch.Tensor:
    """Weights `cos(lat) / mean(cos(lat))` of the rows.

    Args:
        latitude: Latitude of each row, in degrees, `(H,)`.

    Returns:
        Weights `(H,)` with mean 1, float64.
    """
    degrees = np.asarray(latitude, dtype=np.float64)
    if degrees.ndim != 1 or len(degrees) == 0:
        raise ValueError(f"latitude must hold one number for each row, got the shape {degrees.shape}")
    is_inside = np.abs(degrees) <= 90.0
    if not is_inside.all():
        raise ValueError(f"latitude must be in degrees from -90 to 90, got {degrees[~is_inside][0]:g}")
    cosine = torch.cos(torch.deg2rad(torch.as_tensor(degrees)))
    return cosine / cosine.mean()


_SQRT_2 = math.sqrt(2.0)
_TWO_DENSITIES = 2.0 / math.sqrt(2.0 * math.pi)
_INVERSE_SQRT_PI = 1.0 / math.sqrt(math.pi)


def gaussian_crps(mean: torch.Tensor, std: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """CRPS of the normal distribution in closed form, at each element.

        CRPS = std * (z (2 Phi(z) - 1) + 2 phi(z) - 1 / sqrt(pi)),  z = (truth - mean) / std

    Without spread it is `|truth - mean|`, the limit. The derivatives are written out, `1 - 2 Phi(z)` by the mean and
    `2 phi(z) - 1 / sqrt(pi)` by the spread: both are bounded, where those of the single terms overflow for a small
    spread. The score does not change if mean and truth are shifted by the same amount: subtract a large
    common value from both to keep the precision.

    Args:
        mean: Mean of the forecast.
        std: Standard deviation of the forecast, not negative, of the same shape.
        truth: Truth, of the same shape.
    """
    if not mean.shape == std.shape == truth.shape:
        raise ValueError(
            f"mean, std and truth must have one shape, got {tuple(mean.shape)}, {tuple(std.shape)} and "
            f"{tuple(truth.shape)}"
        )
    return _GaussianCRPS.apply(mean, std, truth)  # type: ignore[return-value]


class _GaussianCRPS(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(mean, std, truth):  # pyright: ignore[reportIncompatibleMethodOverride]
        difference = truth - mean
        z = standardise(difference, std)
        return difference * torch.erf(z / _SQRT_2) + std * _by_std(z)

    @staticmethod
    def setup_context(ctx, inputs, output):
        del output
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, *grad_outputs):
        (gradient,) = grad_outputs
        mean, std, truth = ctx.saved_tensors
        z = standardise(truth - mean, std)
        by_truth = gradient * torch.erf(z / _SQRT_2)
        return -by_truth, gradient * _by_std(z), by_truth


def standardise(difference: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
    """Returns `difference / std`, or 0 where the difference is 0, however narrow the distribution. NaN stays NaN."""
    return torch.where(difference == 0.0, difference, difference / std)


def _by_std(z: torch.Tensor) -> torch.Tensor:
    return _TWO_DENSITIES * torch.exp(-0.5 * z * z) - _INVERSE_SQRT_PI
