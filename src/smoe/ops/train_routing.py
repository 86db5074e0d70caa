"""Trains the routing inside one backward pass: the gate by the RC loss, the experts by the damped error.

`train_routing` passes the selected experts' outputs on. In backward it receives the error signal and hands the gate
its routing-classification gradient and the experts their damped error (paper sections 2.2 and 2.3).
"""

from __future__ import annotations

import torch

from smoe.ops.native.training import library_for, native_train_routing
from smoe.ops.routing_error import (
    choice_errors,
    damp_error,
    routing_gradient,
    straight_through_gradient,
    wrong_choices,
)
from smoe.options import RoutingTraining


def train_routing(
    selected: torch.Tensor,
    scores: torch.Tensor,
    indices: torch.Tensor,
    weights: torch.Tensor | None,
    *,
    expert_channels: int,
    training: RoutingTraining,
    loss_scale: torch.Tensor,
    num_nonfinite: torch.Tensor,
) -> torch.Tensor:
    """Weighs the selected experts' outputs and trains the routing in backward.

    Args:
        selected: outputs of the selected experts `(B, E * F, H, W)`; receives the damped error.
        scores: the gate's scores `(X, H, W)` or `(B, X, H, W)`; receives the gate's gradient.
        indices: the selected experts, of as many dimensions as `scores`.
        weights: their scores if the outputs are to be weighted; the gradient goes to `scores`, not to them.
        expert_channels: F.
        training: how the routing learns.
        loss_scale: scalar tensor read in backward: what the loss was multiplied by before its backward.
        num_nonfinite: scalar int64 tensor that counts the backward passes whose error was not finite. The gate's
            gradient is zero in these.

    Returns:
        `(B, E * F, H, W)`.
    """
    return _TrainRouting.apply(
        selected, scores, weights, indices, loss_scale, num_nonfinite, expert_channels, *_fields(training)
    )  # type: ignore[return-value]


def _fields(training: RoutingTraining) -> tuple[bool, float, float, float | None, float, float]:
    # Without a rule the gate still takes part, with a gradient of zero: several processes wait for every parameter's.
    return (
        training.training_rule != "end_to_end",
        training.rc_weight if training.training_rule == "rc" else 0.0,
        training.error_quantile,
        training.damping,
        training.tolerance,
        training.damping_tolerance,
    )


def weigh(selected: torch.Tensor, weights: torch.Tensor, expert_channels: int) -> torch.Tensor:
    """Multiplies each expert's outputs `(B, E * F, H, W)` by its weight `(E, H, W)` or `(B, E, H, W)`."""
    per_channel = weights.to(selected.dtype).repeat_interleave(expert_channels, dim=-3)
    return selected * per_channel


class _TrainRouting(torch.autograd.Function):
    @staticmethod
    def forward(ctx, selected, scores, weights, indices, loss_scale, num_nonfinite, expert_channels, *options):
        needs_outputs = weights is not None and not options[0]
        ctx.save_for_backward(scores, indices, weights, selected if needs_outputs else None)
        # Not saved tensors: both are meant to change between forward and backward.
        ctx.loss_scale, ctx.num_nonfinite = loss_scale, num_nonfinite
        ctx.expert_channels, ctx.options = expert_channels, options
        if weights is None:
            # `detach` and not `view_as`: autograd lets the layer after this one work in place on it.
            return selected.detach()
        return weigh(selected, weights, expert_channels)

    @staticmethod
    def backward(ctx, *grad_outputs):
        (error,) = grad_outputs
        scores, indices, weights, outputs = ctx.saved_tensors
        damped, gate_gradient = torch.ops.smoe.train_routing_backward(
            error, scores, indices, outputs, ctx.loss_scale, ctx.num_nonfinite, ctx.expert_channels, *ctx.options
        )
        if not torch.compiler.is_compiling() and torch.is_grad_enabled():
            damped, gate_gradient = _WithoutDerivative.apply(damped, gate_gradient, error)  # type: ignore[misc]
        if weights is not None:
            damped = weigh(damped, weights, ctx.expert_channels)
        return (damped, gate_gradient if ctx.needs_input_grad[1] else None) + (None,) * (5 + len(ctx.options))


class _WithoutDerivative(torch.autograd.Function):
    """Stands behind what a backward pass returns that is to be differentiated again: the rule is no gradient."""

    @staticmethod
    def forward(ctx, damped, gradient, error):
        del ctx, error
        return damped.detach(), gradient.detach()

    @staticmethod
    def backward(ctx, *grad_outputs):
        del ctx, grad_outputs
        raise RuntimeError("smoe::train_routing_backward has no derivative: it is a training rule, not a gradient")


# One opaque operator, so that compilers keep it whole: the loss scale must be read when backward runs, and a native
# kernel can take its place. Defined by schema, not by torch.library.custom_op, whose Python wrapping takes as long as
# the kernel of a small layer.
_LIBRARY = torch.library.Library("smoe", "FRAGMENT")
_LIBRARY.define(
    "train_routing_backward(Tensor error, Tensor scores, Tensor indices, Tensor? outputs, Tensor loss_scale, "
    "Tensor(a!) num_nonfinite, int expert_channels, bool rc_loss, float rc_weight, float error_quantile, "
    "float? damping, float tolerance, float damping_tolerance) -> (Tensor, Tensor)"
)


@torch.library.impl(_LIBRARY, "train_routing_backward", "CompositeExplicitAutograd")
def _backward(
    error: torch.Tensor,
    scores: torch.Tensor,
    indices: torch.Tensor,
    outputs: torch.Tensor | None,
    loss_scale: torch.Tensor,
    num_nonfinite: torch.Tensor,
    expert_channels: int,
    rc_loss: bool,
    rc_weight: float,
    error_quantile: float,
    damping: float | None,
    tolerance: float,
    damping_tolerance: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    # With every expert selected there is nothing to choose: no choice can be wrong. And an empty batch says nothing.
    # A paused rule does not ask which choices are wrong.
    is_idle = rc_loss and rc_weight == 0.0 and damping is None
    has_choice = indices.shape[-3] < scores.shape[-3] and error.numel() > 0 and not is_idle
    library = library_for(error, scores) if has_choice else None
    if library is not None and (rc_loss or damping is not None):
        damped, gradient, is_nonfinite = native_train_routing(
            library,
            *(error, scores, indices, float(loss_scale), expert_channels),
            rc_loss=rc_loss,
            rc_weight=rc_weight,
            error_quantile=error_quantile,
            damping=damping,
            tolerance=tolerance,
            damping_tolerance=damping_tolerance,
        )
        if is_nonfinite:
            num_nonfinite += 1
        if gradient is None:
            signal = error if outputs is None else error * outputs
            gradient = straight_through_gradient(scores, indices, signal, expert_channels)
            gradient = gradient.zero_() if is_nonfinite else gradient
        return _as_promised(error, damped), gradient
    errors = choice_errors(error, expert_channels, loss_scale.to(error.device))
    # The largest error tells, in a twentieth of the time of looking at all: it is NaN if there is one.
    largest = errors.amax() if errors.numel() else errors.new_zeros(())
    is_nonfinite = largest.isfinite().logical_not()
    num_nonfinite += is_nonfinite.to(num_nonfinite.device)
    damped, gradient = None, torch.zeros_like(scores)
    if has_choice and (rc_loss or damping is not None):
        is_wrong, is_damped = wrong_choices(errors, error_quantile, (tolerance, damping_tolerance))
        if damping is not None:
            damped = damp_error(error, is_damped, damping, expert_channels)
        if rc_loss:
            gradient = routing_gradient(scores, indices, is_wrong).mul_(rc_weight * loss_scale.to(scores.device))
    if not rc_loss:
        signal = error if outputs is None else error * outputs
        gradient = straight_through_gradient(scores, indices, signal, expert_channels)
    return _as_promised(error, damped), gradient.masked_fill_(is_nonfinite, 0.0)


def _as_promised(error: torch.Tensor, damped: torch.Tensor | None) -> torch.Tensor:
    """The error that goes on, in the strides of `error`, which compilers are promised, and never `error` itself."""
    if damped is None:
        return error.clone()
    return damped if damped.stride() == error.stride() else torch.empty_like(error).copy_(damped)


@torch.library.register_fake("smoe::train_routing_backward", lib=_LIBRARY)
def _(error, scores, indices, outputs, loss_scale, num_nonfinite, expert_channels, *options):
    del indices, outputs, loss_scale, num_nonfinite, expert_channels, options
    return torch.empty_like(error), torch.empty_like(scores)
