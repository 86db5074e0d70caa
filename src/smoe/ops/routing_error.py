"""Which choices were wrong, the gate's gradient, and the damped error (paper sections 2.2 and 2.3).

All of it follows from the error signal, the gradient of the loss at the layer's output. Pixels are flat. No tensor has
the shape `(B, X, P)` unless the scores have it.
"""

from __future__ import annotations

import torch

from smoe.ops.error_quantile import error_quantile


def choice_errors(error: torch.Tensor, expert_channels: int, loss_scale: torch.Tensor | float = 1.0) -> torch.Tensor:
    """Error of each choice, in the units of the data if the loss is a mean-squared error.

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
        error: Gradient of the loss at the layer's output, `(B, E * F, P)`.
        expert_channels: F; the errors of an expert's F outputs are averaged.
        loss_scale: Factor the loss was multiplied by before its backward (loss scaler, accumulation); divided out.

    Returns:
        `(B, E, P)`, not negative, at least float32.
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
    """For each tolerance, where `errors` exceed their sample's quantile by more than it.

    Args:
        errors: Errors `(B, E, P)` of `choice_errors`.
        error_quantile_: Quantile over a sample's experts and pixels.
        tolerances: Tolerances in the units of `errors`.

    Returns:
        One bool tensor `(B, E, P)` per tolerance.
    """
    threshold = error_quantile(errors, error_quantile_)[:, None, None]
    return tuple(errors > (threshold + tolerance).to(errors.dtype) for tolerance in tolerances)


def routing_gradient(scores: torch.Tensor, indices: torch.Tensor, is_wrong: torch.Tensor) -> torch.Tensor:
    """Gradient of the mean routing classification loss at the gate's scores.

    The loss is the binary cross-entropy of `scores`, as logits, against the paper's labels: 1 for a right choice, 0 for
    a wrong one, and for the experts not selected the number of wrong choices over X - E, at most 1. Its gradient is
    sigmoid(scores) - label over the number of scores, so shared scores need only each label's mean over the batch.

    Args:
        scores: `(1 or B, X, P)`.
        indices: Selected experts, `(1 or B, E, P)`.
        is_wrong: `(B, E, P)`.

    Returns:
        `(1 or B, X, P)`.
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
    """Gradient of the task at the scores of the selected experts, zero elsewhere.

    Args:
        scores: `(1 or B, X, P)`.
        indices: Selected experts, `(1 or B, E, P)`.
        error: Error signal `(B, E * F, P)`, times the experts' outputs if they are weighted.
        expert_channels: F; the score of an expert collects the errors of all its outputs.
    """
    at_selected = error.to(scores.dtype).unflatten(1, (-1, expert_channels)).sum(dim=2)
    if scores.shape[0] == 1:
        at_selected = at_selected.sum(dim=0, keepdim=True)
    return torch.zeros_like(scores).scatter_(1, indices.long(), at_selected)


def damp_error(error: torch.Tensor, is_wrong: torch.Tensor, damping: float, expert_channels: int) -> torch.Tensor:
    """Multiplies the error of wrong choices by `damping`.

    Args:
        error: `(B, E * F, P)`.
        is_wrong: `(B, E, P)`.
        damping: Factor in [0, 1].
        expert_channels: F.
    """
    # In place on a copy, which has the memory format of the error: compilers are promised it.
    damped = error.clone()
    by_expert, is_wrong = damped.unflatten(1, (-1, expert_channels)), is_wrong.unsqueeze(2)
    # A product, so that an overflowed error stays visible to a loss scaler even where the damping is 0.
    if damping == 0.0:
        by_expert.mul_(~is_wrong)
    else:
        by_expert.copy_(torch.where(is_wrong, by_expert * damping, by_expert))
    return damped
