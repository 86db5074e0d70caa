"""Which choices were wrong, the gate's gradient, and the damped error (paper sections 2.2 and 2.3).

All of it follows from the error signal, the gradient of the loss at the layer's output. Pixels are flat. No tensor has
the shape `(B, X, P)` unless the scores have it.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

import torch

from smoe.ops._operators import library_for, num_threads, register_operator
from smoe.ops._routing import ErrorSignal, Routing
from smoe.rules import Damping, RoutingClassification


def choice_errors(error: torch.Tensor, expert_channels: int, loss_scale: torch.Tensor | float = 1.0) -> torch.Tensor:
    """Error `(B, E, P)` of each choice, not negative, at least float32; the mean over the F outputs of an expert.

    A mean-squared loss over N elements has the gradient 2/N (prediction - truth), so |error| N/2 is the prediction
    error, in the units of the data. For other losses and deeper layers it is a scaled proxy of it; docs/images.md says
    what that means for a classifier. `loss_scale`, by which a scaler or an accumulation multiplied the loss, is divided
    out of `error` `(B, E * F, P)`.
    """
    if error.dtype in (torch.float16, torch.bfloat16):
        error = error.float()
    magnitude = error.abs()
    if expert_channels > 1:
        magnitude = magnitude.unflatten(1, (-1, expert_channels)).mean(dim=2)
    return magnitude.mul_((error.numel() / 2) / abs(loss_scale))


def wrong_choices(
    errors: torch.Tensor, error_quantile_: float, tolerances: tuple[torch.Tensor | float, ...]
) -> tuple[torch.Tensor, ...]:
    """For each tolerance, where errors `(B, E, P)` exceed the quantile of their sample by more than it, bool."""
    threshold = error_quantile(errors, error_quantile_)[:, None, None]
    return tuple(errors > (threshold + tolerance).to(errors.dtype) for tolerance in tolerances)


def routing_gradient(scores: torch.Tensor, indices: torch.Tensor, is_wrong: torch.Tensor) -> torch.Tensor:
    """Gradient of the mean routing classification loss at the gate's scores.

    The loss is the binary cross-entropy of `scores`, as logits, against the paper's labels: 1 for a right choice, 0 for
    a wrong one, and for the experts not selected the number of wrong choices over X - E, at most 1. Its gradient is
    sigmoid(scores) - label over the number of scores, so shared scores need only each label's mean over the batch.
    Scores are `(1 or B, X, P)`, indices `(1 or B, E, P)`, `is_wrong` `(B, E, P)`.
    """
    num_experts, num_selected = scores.shape[1], indices.shape[1]
    if num_selected == num_experts:
        raise ValueError(f"all {num_experts} experts are selected: there is no routing to classify")
    wrong = is_wrong.to(scores.dtype)
    num_unselected = num_experts - num_selected
    is_shared = scores.shape[0] == 1
    if is_shared and num_selected <= num_unselected:
        # No label can exceed 1, so the mean over the batch may be taken first: it is E planes instead of B E.
        wrong = wrong.mean(dim=0, keepdim=True)
        unselected_label = wrong.sum(dim=1, keepdim=True) / num_unselected
    else:
        unselected_label = (wrong.sum(dim=1, keepdim=True) / num_unselected).clamp_(max=1.0)
        if is_shared:
            wrong, unselected_label = (part.mean(dim=0, keepdim=True) for part in (wrong, unselected_label))
    gradient, indices = scores.sigmoid(), indices.long()
    at_selected = gradient.gather(1, indices) - (1.0 - wrong)
    gradient -= unselected_label
    gradient.scatter_(1, indices, at_selected)
    return gradient.div_(scores.numel())


def end_to_end_gradient(
    scores: torch.Tensor, indices: torch.Tensor, error: torch.Tensor, expert_channels: int
) -> torch.Tensor:
    """Gradient of the task at the scores `(1 or B, X, P)` of the selected experts, zero elsewhere.

    The score of an expert collects the errors `(B, E * F, P)` of all its outputs; they are multiplied by the outputs
    where these are weighted.
    """
    at_selected = error.to(scores.dtype).unflatten(1, (-1, expert_channels)).sum(dim=2)
    if scores.shape[0] == 1:
        at_selected = at_selected.sum(dim=0, keepdim=True)
    return torch.zeros_like(scores).scatter_(1, indices.long(), at_selected)


def damp_error(error: torch.Tensor, is_wrong: torch.Tensor, damping: float, expert_channels: int) -> torch.Tensor:
    """Multiplies the error `(B, E * F, P)` of wrong choices `(B, E, P)` by `damping`."""
    # In place on a copy, which has the memory format of the error: compilers are promised it.
    damped = error.clone()
    by_expert, is_wrong = damped.unflatten(1, (-1, expert_channels)), is_wrong.unsqueeze(2)
    # A product, so that an overflowed error stays visible to a loss scaler even where the damping is 0.
    if damping == 0.0:
        by_expert.mul_(~is_wrong)
    else:
        by_expert.copy_(torch.where(is_wrong, by_expert * damping, by_expert))
    return damped


def train_routing(
    selected: torch.Tensor,
    routing: Routing,
    *,
    expert_channels: int,
    signal: ErrorSignal,
    rule: RoutingClassification | None = None,
    damping: Damping | None = None,
) -> torch.Tensor:
    """Returns `selected`; in backward, trains the gate and damps the error of the experts.

    Args:
        selected: Outputs of the selected experts, `(B, E * F, *grid)`; receives the damped error.
        routing: Routing that selected them; its scores receive the gate's gradient.
        expert_channels: F.
        signal: Loss scale and counter of the layer.
        rule: Routing classification loss of the gate; None gives the scores no gradient.
        damping: Damping of the experts' error; None leaves it whole. With a rule, the damping must have its error
            quantile and unit, because one threshold serves both.

    Returns:
        `(B, E * F, *grid)`.
    """
    shared = rule if rule is not None else damping
    if shared is None:
        return selected
    if rule is not None and damping is not None and not have_one_threshold(rule, damping):
        raise ValueError(
            f"one threshold serves rule and damping: they need the same error_quantile and tolerance_unit, got {rule} "
            f"and {damping}"
        )
    if signal.loss_scale.device != selected.device:
        raise ValueError(
            f"the error signal is on {signal.loss_scale.device} but the experts' output on {selected.device}; move the "
            "layer with layer.to(device)"
        )
    # A unit of 1 costs nothing; the size of the output is a pass over it.
    unit = root_mean_square(selected) if shared.tolerance_unit == "output" else None
    options = (
        rule is not None,
        0.0 if rule is None else rule.weight,
        shared.error_quantile,
        None if damping is None else damping.factor,
        0.0 if rule is None else rule.tolerance,
        0.0 if damping is None else damping.tolerance,
    )
    scores = routing.scores.detach() if rule is None else routing.scores
    return _TrainRouting.apply(
        *(selected, scores, routing.indices, unit, signal.loss_scale, signal.num_nonfinite),
        *(expert_channels, *options),
    )  # type: ignore[return-value]


def have_one_threshold(rule: RoutingClassification, damping: Damping) -> bool:
    """Whether the same errors decide what is wrong for the gate and what is damped, but for the tolerance."""
    return (rule.error_quantile, rule.tolerance_unit) == (damping.error_quantile, damping.tolerance_unit)


def root_mean_square(output: torch.Tensor) -> torch.Tensor:
    """Size of a layer's output, a float64 scalar without gradient."""
    return output.detach().float().square().mean().sqrt().double()


class _TrainRouting(torch.autograd.Function):
    @staticmethod
    def forward(ctx, selected, scores, indices, unit, loss_scale, num_nonfinite, expert_channels, *options):
        ctx.save_for_backward(scores, indices, unit)
        # Not saved tensors: both are meant to change between forward and backward.
        ctx.loss_scale, ctx.num_nonfinite = loss_scale, num_nonfinite
        ctx.expert_channels, ctx.options = expert_channels, options
        # `detach` and not `view_as`: autograd lets the layer after this one work in place on it.
        return selected.detach()

    @staticmethod
    def backward(ctx, *grad_outputs):
        (error,) = grad_outputs
        scores, indices, unit = ctx.saved_tensors
        # Where the result is differentiated again, the damped error follows the error; the gate's gradient is constant.
        is_differentiable = torch.is_grad_enabled() and not torch.compiler.is_compiling()
        damped, gradient = (_dense if is_differentiable else _train_routing_backward)(
            error.flatten(2),
            scores.detach(),
            indices,
            unit,
            ctx.loss_scale,
            ctx.num_nonfinite,
            ctx.expert_channels,
            *ctx.options,
        )
        damped = damped.unflatten(2, error.shape[2:])
        return (damped, gradient if ctx.needs_input_grad[1] else None) + (None,) * (5 + len(ctx.options))


def _dense(
    error: torch.Tensor,
    scores: torch.Tensor,
    indices: torch.Tensor,
    unit: torch.Tensor | None,
    loss_scale: torch.Tensor,
    num_nonfinite: torch.Tensor,
    expert_channels: int,
    trains_gate: bool,
    rc_weight: float,
    error_quantile: float,
    damping: float | None,
    tolerance: float,
    damping_tolerance: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    if not _has_choice(error, scores, indices):
        return error.clone(), _no_gradient(scores, trains_gate)
    errors = choice_errors(error.detach(), expert_channels, loss_scale)
    # The largest error is NaN if there is one, and takes a twentieth of the time of looking at all of them.
    is_nonfinite = errors.amax().isfinite().logical_not()
    num_nonfinite += is_nonfinite
    units = 1.0 if unit is None else unit
    is_wrong, is_damped = wrong_choices(errors, error_quantile, (tolerance * units, damping_tolerance * units))
    damped = None if damping is None else damp_error(error, is_damped, damping, expert_channels)
    gradient = _no_gradient(scores, trains_gate=False)
    if trains_gate:
        gradient = routing_gradient(scores, indices, is_wrong).mul_(rc_weight * loss_scale)
        gradient = gradient.masked_fill_(is_nonfinite, 0.0)
    return _as_promised(error, damped), gradient


def _native(
    error: torch.Tensor,
    scores: torch.Tensor,
    indices: torch.Tensor,
    unit: torch.Tensor | None,
    loss_scale: torch.Tensor,
    num_nonfinite: torch.Tensor,
    expert_channels: int,
    trains_gate: bool,
    *numbers: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    if indices.dtype != torch.int32 or indices.device.type != "cpu":
        raise ValueError(
            f"smoe::train_routing_backward needs int32 indices on cpu, got {indices.dtype} on {indices.device}"
        )
    library = library_for(error, scores) if _has_choice(error, scores, indices) else None
    if library is None:
        arguments = (error, scores, indices, unit, loss_scale, num_nonfinite, expert_channels, trains_gate)
        return _dense(*arguments, *numbers)
    rc_weight, error_quantile, damping, tolerance, damping_tolerance = numbers
    num_samples, num_experts, num_pixels = scores.shape
    tensors = error.contiguous(), scores.contiguous(), indices.contiguous()
    damped = None if damping is None else torch.empty_like(tensors[0])
    gradient = torch.empty_like(tensors[1]) if trains_gate else None
    factors = (error.numel() / 2, error_quantile, tolerance, damping_tolerance, damping or 0.0)
    options = [ctypes.c_double(number) for number in (*factors, rc_weight / scores.numel())]
    # Scores of their own make each sample a batch of one: its labels are not a mean over the others.
    batch = len(error) if num_samples == 1 else 1
    sizes = (batch, indices.shape[1], expert_channels, num_pixels, num_experts)
    found = ctypes.c_int64(0)
    is_nonfinite = False
    for call in range(num_samples):
        here = [None if each is None else each[call : call + batch] for each in (*tensors, damped, gradient)]
        arguments = (here[0], *sizes, *options, loss_scale, unit, here[3], *here[1:3], here[4])
        library.call("smoe_train_routing", *arguments, ctypes.byref(found), num_threads())
        is_nonfinite |= bool(found.value)
    if is_nonfinite:
        num_nonfinite += 1
    gradient = _no_gradient(scores, trains_gate) if gradient is None or is_nonfinite else gradient
    return _as_promised(error, damped), gradient


def _has_choice(error: torch.Tensor, scores: torch.Tensor, indices: torch.Tensor) -> bool:
    # If every expert is selected, no choice can be wrong; an empty batch has no errors.
    return indices.shape[1] < scores.shape[1] and error.numel() > 0


def _as_promised(error: torch.Tensor, damped: torch.Tensor | None) -> torch.Tensor:
    """The error for the experts, in the strides of `error`, which compilers are promised, and never `error` itself."""
    if damped is None:
        return error.clone()
    return damped if damped.stride() == error.stride() else torch.empty_like(error).copy_(damped)


def _no_gradient(scores: torch.Tensor, trains_gate: bool) -> torch.Tensor:
    """Zeros, or an empty tensor if the gate is not trained."""
    return torch.zeros_like(scores) if trains_gate else scores.new_empty(0)


def _fake(error, scores, indices, unit, loss_scale, num_nonfinite, expert_channels, trains_gate, *numbers):
    del indices, unit, loss_scale, num_nonfinite, expert_channels, numbers
    return torch.empty_like(error), torch.empty_like(scores) if trains_gate else scores.new_empty(0)


# One opaque operator: compilers keep it whole, so that the loss scale is read when backward runs.
_train_routing_backward = register_operator(
    "train_routing_backward(Tensor error, Tensor scores, Tensor indices, Tensor? unit, Tensor loss_scale, "
    "Tensor(a!) num_nonfinite, int expert_channels, bool trains_gate, float rc_weight, float error_quantile, "
    "float? damping, float tolerance, float damping_tolerance) -> (Tensor, Tensor)",
    dense=_dense,
    native=_native,
    fake=_fake,
)


def error_quantile(errors: torch.Tensor, quantile: float) -> torch.Tensor:
    """The `quantile` of each sample over all its other dimensions, with linear interpolation. It has no gradient.

    Equal to `torch.quantile`, which sorts, refuses half precision and stops at 2^24 elements.

    Args:
        errors: Values `(B, ...)` with at least one element per sample.
        quantile: Quantile in [0, 1].

    Returns:
        `(B,)`, in float32 for half-precision errors and in their own dtype otherwise. The quantile of a sample that
        holds a NaN is NaN, wherever the NaN would rank.
    """
    if not 0.0 <= quantile <= 1.0:
        raise ValueError(f"quantile must be in [0, 1], got {quantile}")
    if errors.ndim < 2 or errors[:1].numel() == 0:
        raise ValueError(f"errors must be (B, ...) with at least one element per sample, got {tuple(errors.shape)}")
    return _error_quantile(errors.detach(), quantile)


def _dense_quantile(errors: torch.Tensor, quantile: float) -> torch.Tensor:
    rows = _at_least_float32(errors).flatten(1)
    position = quantile * (rows.shape[1] - 1)
    rank = math.floor(position)
    fraction = position - rank
    ranked = rows.sort(dim=1).values
    low, high = ranked[:, rank], ranked[:, min(rank + 1, rows.shape[1] - 1)]
    # Equal neighbours need no interpolation, and the difference of infinite ones is NaN.
    value = torch.where(low == high, low, low + fraction * (high - low)) if fraction > 0 else low
    return value.masked_fill(rows.isnan().any(dim=1), torch.nan)


def _native_quantile(errors: torch.Tensor, quantile: float) -> torch.Tensor:
    errors = _at_least_float32(errors)
    library = library_for(errors)
    if library is None:
        return _dense_quantile(errors, quantile)
    rows = errors.flatten(1).contiguous()
    result = rows.new_empty(rows.shape[0])
    sizes = (rows.shape[0], rows.shape[1])
    library.call("smoe_error_quantile", rows, *sizes, ctypes.c_double(quantile), result, num_threads())
    return result


def _fake_quantile(errors: torch.Tensor, quantile: float) -> torch.Tensor:
    del quantile
    is_half = errors.dtype in (torch.float16, torch.bfloat16)
    return errors.new_empty(errors.shape[0], dtype=torch.float32 if is_half else errors.dtype)


def _at_least_float32(errors: torch.Tensor) -> torch.Tensor:
    return errors.float() if errors.dtype in (torch.float16, torch.bfloat16) else errors


_error_quantile = register_operator(
    "error_quantile(Tensor errors, float quantile) -> Tensor",
    dense=_dense_quantile,
    native=_native_quantile,
    fake=_fake_quantile,
)
