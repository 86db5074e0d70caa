"""Which choices were wrong, the gate's gradient, and the damped error (paper sections 2.2 and 2.3).

All of it follows from the error signal, the gradient of the loss at the layer's output. Nothing here has the shape
`(B, X, H, W)` unless the scores have it.
"""

from __future__ import annotations

import torch

from smoe.ops.error_quantile import error_quantile


def choice_errors(error: torch.Tensor, expert_channels: int, loss_scale: torch.Tensor | float = 1.0) -> torch.Tensor:
    """How far off each choice was, in the units of the data if the loss is a mean-squared error.

    A mean-squared loss over N elements has the gradient 2/N (prediction - truth), so |error| N/2 is the prediction
    error. For other losses and deeper layers it is a scaled proxy of it.

    Under the mean CRPS of a corrected ensemble (`smoe.losses.GaussianCRPSLoss`) it is, at the network's two outputs,
    s |2 Phi(z) - 1| and std |2 phi(z) - 1/sqrt(pi)|, with the ensemble's spread s, the forecast's std and the miss z in
    units of it. These have the unit of the data but are bounded by the spread: the choices that count as wrong are
    those where the ensemble is uncertain and the truth in a tail, and a miss of 5 std is no worse than one of 3. In a
    hidden layer of C x h x w outputs it is (C h w) / (2 H W) times the change of the summed CRPS for each unit of an
    output: the unit of the data per unit of an activation that has none. So the unit of the data does not change which
    errors exceed the quantile, but what a tolerance means; and measuring tolerances by the layer's output does not
    help, because outputs stay as they are when temperatures are given in mK while errors grow a thousandfold.

    Under a cross-entropy (`smoe.losses.CrossEntropy`) it is, in a layer of C x h x w outputs, (C h w) / 2 times the
    change of a sample's loss for each unit of an output: no unit at all, and of the order of 1 until the sample is
    classified with confidence. Behind a ReLU an output that is cut has next to no error. So in a classifier the largest
    errors are those of the outputs that are active, and these are what counts as wrong: see docs/images.md.

    Args:
        error: `(B, E * F, H, W)`, gradient of the loss at the layer's output.
        expert_channels: F; the errors of an expert's F outputs are averaged.
        loss_scale: factor the loss was multiplied by before its backward (loss scaler, accumulation); divided out.

    Returns:
        `(B, E, H, W)`, not negative, at least float32.
    """
    if error.dtype in (torch.float16, torch.bfloat16):
        error = error.float()
    magnitude = error.abs()
    if expert_channels > 1:
        magnitude = magnitude.unflatten(1, (-1, expert_channels)).mean(dim=2)
    return magnitude.mul_((error.numel() / 2) / abs(loss_scale))


def wrong_choices(
    errors: torch.Tensor, error_quantile_: float, tolerances: tuple[float, ...]
) -> tuple[torch.Tensor, ...]:
    """For each tolerance, where `errors` exceed their sample's quantile by more than it.

    Args:
        errors: `(B, E, H, W)` of `choice_errors`.
        error_quantile_: quantile over a sample's experts and pixels.
        tolerances: in the units of `errors`.

    Returns:
        One bool tensor `(B, E, H, W)` per tolerance.
    """
    threshold = error_quantile(errors, error_quantile_)[:, None, None, None]
    return tuple(errors > threshold + tolerance for tolerance in tolerances)


def routing_gradient(scores: torch.Tensor, indices: torch.Tensor, is_wrong: torch.Tensor) -> torch.Tensor:
    """Gradient of the mean routing classification loss at the gate's scores.

    The loss is the binary cross-entropy of `scores`, as logits, against the paper's labels: 1 for a right choice, 0 for
    a wrong one, and for the experts not chosen the number of wrong choices over X - E, at most 1. Its gradient is
    sigmoid(scores) - label over the number of scores, so shared scores need only each label's mean over the batch.

    Args:
        scores: `(X, H, W)` or `(B, X, H, W)`.
        indices: chosen experts, `(E, H, W)` or `(B, E, H, W)` as the scores.
        is_wrong: `(B, E, H, W)`.

    Returns:
        Of the shape of `scores`.
    """
    num_experts, num_selected = scores.shape[-3], indices.shape[-3]
    if num_selected == num_experts:
        raise ValueError(f"all {num_experts} experts are selected: there is no routing to classify")
    wrong = is_wrong.to(scores.dtype)
    num_unselected = num_experts - num_selected
    if scores.ndim == 3 and num_selected <= num_unselected:
        # No label can exceed 1, so the mean over the batch may be taken first: it is E planes instead of B E.
        wrong = wrong.mean(dim=0)
        unselected_label = wrong.sum(dim=0, keepdim=True) / num_unselected
    else:
        unselected_label = (wrong.sum(dim=1, keepdim=True) / num_unselected).clamp_(max=1.0)
        if scores.ndim == 3:
            wrong, unselected_label = wrong.mean(dim=0), unselected_label.mean(dim=0)
    gradient, indices = scores.sigmoid(), indices.long()
    at_selected = gradient.gather(-3, indices) - (1.0 - wrong)
    gradient -= unselected_label
    gradient.scatter_(-3, indices, at_selected)
    return gradient.div_(scores.numel())


def straight_through_gradient(
    scores: torch.Tensor, indices: torch.Tensor, error: torch.Tensor, expert_channels: int
) -> torch.Tensor:
    """Gradient of the task at the selected scores, zero elsewhere.

    Args:
        scores: `(X, H, W)` or `(B, X, H, W)`.
        indices: chosen experts, of the same number of dimensions.
        error: `(B, E * F, H, W)`: the error signal, times the experts' outputs if they are weighted.
        expert_channels: F; an expert's score collects the errors of all its outputs.
    """
    at_selected = error.to(scores.dtype).unflatten(1, (-1, expert_channels)).sum(dim=2)
    if scores.ndim == 3:
        at_selected = at_selected.sum(dim=0)
    return torch.zeros_like(scores).scatter_(-3, indices.long(), at_selected)


def damp_error(error: torch.Tensor, is_wrong: torch.Tensor, damping: float, expert_channels: int) -> torch.Tensor:
    """Multiplies the error of wrong choices by `damping`: `(B, E * F, H, W)`."""
    # In place on a copy, which has the memory format of the error: compilers are promised it.
    damped = error.clone()
    by_expert, is_wrong = damped.unflatten(1, (-1, expert_channels)), is_wrong.unsqueeze(2)
    # A product, so that an overflowed error stays visible to a loss scaler even where the damping is 0.
    if damping == 0.0:
        by_expert.mul_(~is_wrong)
    else:
        by_expert.copy_(torch.where(is_wrong, by_expert * damping, by_expert))
    return damped
