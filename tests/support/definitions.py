"""The operations and training rules of the layers in plain loops, which the tests compare them with."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from routed_conv_cases import loop_routed_conv
from smoe.nn import FixedGate, RoutedLayer, SpatialMoE2d, TensorGate
from smoe.ops import output_grid
from smoe.rules import EndToEnd, RoutingClassification


def loop_quantile(values: list[float], quantile: float) -> float:
    """Quantile with linear interpolation between the two nearest ranks."""
    ranked = sorted(values)
    position = quantile * (len(ranked) - 1)
    rank = math.floor(position)
    if rank == len(ranked) - 1:
        return ranked[rank]
    return ranked[rank] + (position - rank) * (ranked[rank + 1] - ranked[rank])


def compare_gradients(
    output: torch.Tensor, expected: torch.Tensor, tensors: list[torch.Tensor], tolerance: float | None = None
) -> None:
    """Compares two outputs, and their gradients by the tensors for one random error."""
    torch.testing.assert_close(output, expected, rtol=tolerance, atol=tolerance)
    error = torch.randn_like(output)
    found, wanted = (torch.autograd.grad(each, tensors, error, allow_unused=True) for each in (output, expected))
    for one, other, tensor in zip(found, wanted, tensors, strict=True):
        parts = (torch.zeros_like(tensor) if part is None else part for part in (one, other))
        torch.testing.assert_close(*parts, rtol=tolerance, atol=tolerance)


def loop_top_experts(scores: torch.Tensor, num_selected: int, order: str = "score") -> torch.Tensor:
    """Experts with the highest scores at each pixel of `(S, X, P)`, int32; of equal scores, the lower number."""
    num_samples, num_experts, num_pixels = scores.shape
    indices = torch.empty(num_samples, num_selected, num_pixels, dtype=torch.int32)
    for sample in range(num_samples):
        for pixel in range(num_pixels):
            values = scores[sample, :, pixel].tolist()
            ranking = sorted(range(num_experts), key=lambda expert: (-values[expert], expert))
            chosen = ranking[:num_selected]
            if order == "index":
                chosen = sorted(chosen)
            indices[sample, :, pixel] = torch.tensor(chosen)
    return indices


def loop_conv2d(input: torch.Tensor, kernel: torch.Tensor, stride: int, padding_mode: str) -> torch.Tensor:
    """`(B, C, H, W)` with a kernel `(O, C, kh, kw)` of odd sides: pixel by pixel and tap by tap, borders included."""
    pixels = math.prod(output_grid(input.shape[2], input.shape[3], stride))
    everywhere = torch.arange(len(kernel))[None, :, None].expand(1, -1, pixels)
    return loop_routed_conv(input, kernel, everywhere, 1, stride, padding_mode)


@dataclass(frozen=True)
class RoutingDefinition:
    """What follows for the routing from the error signal. Pixels are flat.

    Attributes:
        is_wrong: Choices that are wrong for the gate, `(B, E, P)`.
        labels: Labels of the routing classification, `(B, X, P)`.
        damped: Error that enters the experts, `(B, E * F, P)`.
    """

    is_wrong: torch.Tensor
    labels: torch.Tensor
    damped: torch.Tensor


def define_routing(
    error: torch.Tensor,
    indices: torch.Tensor,
    num_experts: int,
    expert_channels: int = 1,
    *,
    error_quantile: float = 0.3,
    damping: float | None = 0.0,
    damping_quantile: float | None = None,
    tolerance: float = 1e-5,
    damping_tolerance: float = 1e-3,
) -> RoutingDefinition:
    """Loops over samples, slots, outputs and pixels.

    Args:
        error: `(B, E * F, P)`.
        indices: Selected experts of each sample, `(B, E, P)`.
        num_experts: X.
        expert_channels: F.
        error_quantile: Quantile above which a choice is wrong for the gate.
        damping: Factor of the damped error; None for no damping.
        damping_quantile: Quantile above which the error is damped; `error_quantile` if None.
        tolerance: Tolerance of the gate.
        damping_tolerance: Tolerance of the damping.
    """
    B, E, P = indices.shape
    is_wrong = torch.zeros(B, E, P, dtype=torch.bool)
    labels = torch.zeros(B, num_experts, P, dtype=error.dtype)
    damped = error.clone()
    if num_experts == E:
        return RoutingDefinition(is_wrong, labels, damped)
    places = [(s, p) for s in range(E) for p in range(P)]
    for b in range(B):
        errors = {}
        for s, p in places:
            outputs = [abs(float(error[b, s * expert_channels + f, p])) for f in range(expert_channels)]
            errors[s, p] = sum(outputs) / expert_channels * error.numel() / 2
        threshold = loop_quantile(list(errors.values()), error_quantile)
        damping_threshold = loop_quantile(
            list(errors.values()), error_quantile if damping_quantile is None else damping_quantile
        )
        for s, p in places:
            is_wrong[b, s, p] = errors[s, p] > threshold + tolerance
            if damping is not None and errors[s, p] > damping_threshold + damping_tolerance:
                for f in range(expert_channels):
                    damped[b, s * expert_channels + f, p] *= damping
        for p in range(P):
            chosen = indices[b, :, p].tolist()
            num_wrong = int(is_wrong[b, :, p].sum())
            for x in range(num_experts):
                if x in chosen:
                    labels[b, x, p] = 0.0 if is_wrong[b, chosen.index(x), p] else 1.0
                else:
                    labels[b, x, p] = min(1.0, num_wrong / (num_experts - E))
    return RoutingDefinition(is_wrong, labels, damped)


def define_layer_gradients(layer: SpatialMoE2d, input: torch.Tensor, target: torch.Tensor) -> dict[str, torch.Tensor]:
    """Output of the layer and all gradients of its training on a mean-squared loss, from the loops.

    The rules are routing classification, end to end, and frozen, each with or without damping. The gate must not depend
    on its input, or depend on it by a single parameter tensor.
    """
    rule, damping = layer.rule, layer._active_damping
    x = input.detach().clone().requires_grad_()
    scores = layer.gate(x).scores
    per_sample = scores.expand(x.shape[0], -1, -1)
    indices = loop_top_experts(per_sample, layer.gate.num_selected, layer.gate.order)
    F_ = layer._expert_channels
    selected = loop_routed_conv(x, layer.weight, indices, F_, layer.stride[0], layer.padding_mode)
    chosen = per_sample.gather(1, indices.long()).repeat_interleave(F_, dim=1)
    weights = chosen.unflatten(2, selected.shape[2:])
    output = selected * weights if layer._weighted else selected
    leaf = output.detach().requires_grad_()
    (error,) = torch.autograd.grad(F.mse_loss(leaf, target), leaf)
    size = float(output.detach().square().mean().sqrt())
    units = {"data": 1.0, "output": size}
    options: dict[str, Any] = {"damping": None}
    if isinstance(rule, RoutingClassification):
        options |= {"error_quantile": rule.error_quantile, "tolerance": rule.tolerance * units[rule.tolerance_unit]}
    if damping is not None:
        options |= {
            "damping": damping.factor,
            "damping_quantile": damping.error_quantile,
            "damping_tolerance": damping.tolerance * units[damping.tolerance_unit],
        }
    definition = define_routing(error.flatten(2), indices, layer.gate.num_experts, F_, **options)
    into_experts = definition.damped.unflatten(2, error.shape[2:])
    # The error of a weighted layer at its scores.
    at_scores = error * selected.detach() if layer._weighted else error
    labels = define_routing(at_scores.flatten(2), indices, layer.gate.num_experts, F_, **options).labels
    into_experts = into_experts * weights.detach() if layer._weighted else into_experts
    gate_loss = torch.zeros((), dtype=scores.dtype)
    if isinstance(rule, RoutingClassification) and layer.gate.num_selected < layer.gate.num_experts:
        for b, expert, p in torch.cartesian_prod(*(torch.arange(size) for size in per_sample.shape)).tolist():
            score, label = per_sample[b, expert, p], labels[b, expert, p]
            right, wrong = F.logsigmoid(score), F.logsigmoid(-score)
            gate_loss = gate_loss - (label * right + (1.0 - label) * wrong)
        gate_loss = rule.weight * gate_loss / per_sample.numel()
    elif isinstance(rule, EndToEnd):
        # A loss whose gradient at a selected score is that error.
        gate_loss = (weights * at_scores).sum()
    total = (selected * into_experts).sum() + gate_loss
    parameters = {"input": x, "weight": layer.weight}
    parameters |= {f"gate.{name}": parameter for name, parameter in layer.gate.named_parameters()}
    learned = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
    found = torch.autograd.grad(total, list(learned.values()), allow_unused=True, materialize_grads=True)
    gradients = dict(zip(learned, found, strict=True))
    return {
        "output": output.detach(),
        **{f"{name}.grad": gradients.get(name, torch.zeros_like(value)) for name, value in parameters.items()},
    }


def layer_gradients(layer: SpatialMoE2d, input: torch.Tensor, target: torch.Tensor) -> dict[str, torch.Tensor]:
    """The same from the layer itself, after one backward pass."""
    x = input.detach().clone().requires_grad_()
    layer.zero_grad()
    output = layer(x)
    F.mse_loss(output, target).backward()
    tensors = {"input": x, "weight": layer.weight}
    tensors |= {f"gate.{name}": parameter for name, parameter in layer.gate.named_parameters()}
    gradients = {
        f"{name}.grad": torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
        for name, tensor in tensors.items()
    }
    return {"output": output.detach(), **gradients}


def assert_same(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float = 1e-12) -> None:
    """Compares by name; the tolerance is absolute and relative."""
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            actual[name], value, rtol=tolerance, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}"
        )


def output_and_gradients(
    function: Callable[[torch.Tensor], torch.Tensor], layer: nn.Module, input: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Output of a function of an input and a layer's parameters, and every gradient for a fixed random error."""
    x = input.detach().clone().requires_grad_()
    output = function(x)
    error = torch.randn(output.shape, dtype=output.dtype, generator=torch.Generator().manual_seed(0))
    tensors = {"input": x, **dict(layer.named_parameters())}
    gradients = torch.autograd.grad(output, list(tensors.values()), error)
    return {"output": output.detach(), **{f"{name}.grad": grad for name, grad in zip(tensors, gradients, strict=True)}}


def draw_parameters(layer: nn.Module) -> None:
    """Replaces every parameter by random numbers, so that none is 0 or equal to another by its start."""
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_()


def gate_scores(layer: RoutedLayer) -> torch.Tensor:
    """The tensor that decides the layer's routing."""
    assert isinstance(layer.gate, (TensorGate, FixedGate))
    return layer.gate.scores


def gate_gradient(layer: RoutedLayer) -> torch.Tensor:
    """The gradient that a backward pass left there."""
    gradient = gate_scores(layer).grad
    assert gradient is not None
    return gradient
