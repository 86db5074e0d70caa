"""The rules of the layers in plain loops: what their tests compare with."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from smoe.nn import FixedGate, RoutedLayer, SpatialMoE2d, TensorGate
from smoe.ops.routed_conv import reference_routed_conv2d


def loop_quantile(values: list[float], quantile: float) -> float:
    """Quantile with linear interpolation between the two nearest ranks."""
    ranked = sorted(values)
    position = quantile * (len(ranked) - 1)
    rank = math.floor(position)
    if rank == len(ranked) - 1:
        return ranked[rank]
    return ranked[rank] + (position - rank) * (ranked[rank + 1] - ranked[rank])


def loop_top_experts(scores: torch.Tensor, num_selected: int, order: str = "score") -> torch.Tensor:
    """Experts with the highest scores at each pixel of `(X, H, W)`; of equals, the lower number."""
    num_experts, height, width = scores.shape
    indices = torch.empty(num_selected, height, width, dtype=torch.int64)
    scores = scores.detach()
    for h in range(height):
        for w in range(width):
            ranking = sorted(range(num_experts), key=lambda expert: (-float(scores[expert, h, w]), expert))
            chosen = ranking[:num_selected]
            if order == "index":
                chosen = sorted(chosen)
            indices[:, h, w] = torch.tensor(chosen)
    return indices


def loop_conv2d(input: torch.Tensor, kernel: torch.Tensor, stride: int, padding_mode: str) -> torch.Tensor:
    """`(B, C, H, W)` with a kernel `(O, C, kh, kw)` of odd sides: pixel by pixel and tap by tap, borders included."""
    B, _, H, W = input.shape
    out_channels, _, rows, columns = kernel.shape
    pixels = [(h, w) for h in range(0, H, stride) for w in range(0, W, stride)]
    outputs = []
    for h, w in pixels:
        total = torch.zeros(B, out_channels, dtype=input.dtype)
        for i in range(rows):
            for j in range(columns):
                row, column = h + i - rows // 2, w + j - columns // 2
                if padding_mode == "circular":
                    row %= H
                if padding_mode in ("circular", "longitude"):
                    column %= W
                if 0 <= row < H and 0 <= column < W:
                    total = total + input[:, :, row, column] @ kernel[:, :, i, j].T
        outputs.append(total)
    return torch.stack(outputs, dim=-1).reshape(B, out_channels, len(range(0, H, stride)), len(range(0, W, stride)))


@dataclass(frozen=True)
class RoutingDefinition:
    """What the error signal says of the routing.

    Attributes:
        is_wrong: choices the gate is told to be wrong, `(B, E, H, W)`.
        labels: of the routing classification, `(B, X, H, W)`.
        damped: the error that enters the experts, `(B, E * F, H, W)`.
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
    tolerance: float = 1e-5,
    damping_tolerance: float = 1e-3,
) -> RoutingDefinition:
    """Loops over samples, slots, outputs and pixels; `indices` are `(B, E, H, W)`."""
    B, E, H, W = indices.shape
    is_wrong = torch.zeros(B, E, H, W, dtype=torch.bool)
    labels = torch.zeros(B, num_experts, H, W, dtype=error.dtype)
    damped = error.clone()
    if num_experts == E:
        return RoutingDefinition(is_wrong, labels, damped)
    places = [(s, h, w) for s in range(E) for h in range(H) for w in range(W)]
    for b in range(B):
        errors = {}
        for s, h, w in places:
            outputs = [abs(float(error[b, s * expert_channels + f, h, w])) for f in range(expert_channels)]
            errors[s, h, w] = sum(outputs) / expert_channels * error.numel() / 2
        threshold = loop_quantile(list(errors.values()), error_quantile)
        for s, h, w in places:
            is_wrong[b, s, h, w] = errors[s, h, w] > threshold + tolerance
            if damping is not None and errors[s, h, w] > threshold + damping_tolerance:
                for f in range(expert_channels):
                    damped[b, s * expert_channels + f, h, w] *= damping
        for h in range(H):
            for w in range(W):
                chosen = indices[b, :, h, w].tolist()
                num_wrong = int(is_wrong[b, :, h, w].sum())
                for x in range(num_experts):
                    if x in chosen:
                        labels[b, x, h, w] = 0.0 if is_wrong[b, chosen.index(x), h, w] else 1.0
                    else:
                        labels[b, x, h, w] = min(1.0, num_wrong / (num_experts - E))
    return RoutingDefinition(is_wrong, labels, damped)


def define_layer_gradients(layer: SpatialMoE2d, input: torch.Tensor, target: torch.Tensor) -> dict[str, torch.Tensor]:
    """Output of the layer and all gradients of its training on a mean-squared loss, from the loops.

    The gate must not depend on its input, or depend on it by a single parameter tensor.
    """
    training = layer.routing_training
    x = input.detach().clone().requires_grad_()
    scores = layer.gate(x).scores
    per_sample = scores if scores.ndim == 4 else scores.expand(x.shape[0], *scores.shape)
    indices = torch.stack([loop_top_experts(sample, layer.num_selected, layer.order) for sample in per_sample])
    F_ = layer.expert_channels
    selected = reference_routed_conv2d(
        x, layer.weight, indices, expert_channels=F_, stride=layer.stride, padding_mode=layer.padding_mode
    )
    weights = per_sample.gather(1, indices).repeat_interleave(F_, dim=1)
    output = selected * weights if layer.weighted else selected
    leaf = output.detach().requires_grad_()
    (error,) = torch.autograd.grad(F.mse_loss(leaf, target), leaf)
    definition = define_routing(
        error,
        indices,
        layer.num_experts,
        F_,
        error_quantile=training.error_quantile,
        damping=training.damping,
        tolerance=training.tolerance,
        damping_tolerance=training.damping_tolerance,
    )
    into_experts = definition.damped * weights.detach() if layer.weighted else definition.damped
    gate_loss = torch.zeros((), dtype=scores.dtype)
    if training.training_rule == "rc" and layer.num_selected < layer.num_experts:
        for b, expert, h, w in torch.cartesian_prod(*(torch.arange(size) for size in per_sample.shape)).tolist():
            score, label = per_sample[b, expert, h, w], definition.labels[b, expert, h, w]
            right, wrong = F.logsigmoid(score), F.logsigmoid(-score)
            gate_loss = gate_loss - (label * right + (1.0 - label) * wrong)
        gate_loss = training.rc_weight * gate_loss / per_sample.numel()
    elif training.training_rule == "end_to_end":
        # Straight-through: a loss whose gradient at a selected score is the error, times the output if weighted.
        at_scores = error * selected.detach() if layer.weighted else error
        gate_loss = (per_sample.gather(1, indices).repeat_interleave(F_, dim=1) * at_scores).sum()
    total = (selected * into_experts).sum() + gate_loss
    parameters = {"input": x, "weight": layer.weight}
    parameters |= {f"gate.{name}": parameter for name, parameter in layer.gate.named_parameters()}
    found = torch.autograd.grad(total, list(parameters.values()), allow_unused=True, materialize_grads=True)
    return {"output": output.detach(), **{f"{name}.grad": grad for name, grad in zip(parameters, found, strict=True)}}


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
