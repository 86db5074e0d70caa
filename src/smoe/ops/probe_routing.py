"""What an expert that is not selected would do to the loss: the arithmetic of probing.

At each pixel a *challenger* is evaluated beside the selected experts and compared with one of them, the *incumbent*.
With the difference d between their outputs and the error signal g, the gradient of the loss at the layer's output, the
exchange would change the loss by g d + h d^2 / 2, where h is the curvature of the loss along d. For a squared loss that
is exact. The curvature is measured, not assumed: see `measure_curvature`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

# One pixel of so many has its output disturbed in a pass that measures the curvature.
_PIXELS_PER_MEASUREMENT = 64
# Of the disturbance, in units of the difference between the two experts' outputs.
_DISTURBANCE = 0.5


class Challenge(NamedTuple):
    """Who challenges whom, at each pixel.

    Attributes:
        experts: the challengers, `(1, H, W)`, none of them selected at its pixel.
        slots: the place `(H, W)` of the incumbent among the selected experts, int64.
    """

    experts: torch.Tensor
    slots: torch.Tensor


def draw_challenge(indices: torch.Tensor, num_experts: int, round_number: int) -> Challenge:
    """Pairs, at each pixel, one expert that is not selected with one that is.

    Pixels start at different places and go round: while a pixel's choice stays, it meets every other expert within
    X - E rounds, and every pair within (X - E) E.

    Args:
        indices: selected experts `(E, H, W)`.
        num_experts: X, more than E.
        round_number: counts up.
    """
    num_selected, height, width = indices.shape
    num_others = num_experts - num_selected
    # A multiplicative hash: neighbours get unrelated numbers, the same in every run and on every device.
    start = torch.arange(height * width, device=indices.device).mul_(2654435761).remainder_(2**32).view(height, width)
    place = (start // 64 + round_number) % num_others
    is_other = torch.ones(num_experts, height, width, dtype=torch.int32, device=indices.device)
    is_other.scatter_(0, indices.long(), 0)
    # The experts that are not selected, numbered in ascending order.
    number = is_other.cumsum(0, dtype=torch.int32)
    experts = ((number == place + 1) & (is_other > 0)).to(torch.uint8).argmax(dim=0, keepdim=True)
    slots = (start // 2**14 + round_number % num_others + round_number // num_others) % num_selected
    return Challenge(experts.to(indices.dtype), slots)


def at_slots(values: torch.Tensor, slots: torch.Tensor, expert_channels: int) -> torch.Tensor:
    """The outputs, or errors, `(B, F, H, W)` of one slot at each pixel, out of `(B, E * F, H, W)`."""
    if values.shape[1] == expert_channels:
        return values
    by_slot = values.unflatten(1, (-1, expert_channels))
    shape = (values.shape[0], 1, expert_channels, *slots.shape)
    return by_slot.gather(1, slots.expand(shape)).squeeze(1)


def exchange_scores(
    scores: torch.Tensor, indices: torch.Tensor, challenge: Challenge, is_exchanged: torch.Tensor
) -> None:
    """Lets challengers and incumbents exchange their scores, in place, where `is_exchanged` `(H, W)` says so.

    The challenger takes exactly the incumbent's place; everybody else keeps theirs.

    Args:
        scores: `(X, H, W)`.
        indices: selected experts `(E, H, W)`, by descending score.
        challenge: the pairs.
        is_exchanged: bool.
    """
    incumbents, challengers = indices.long().gather(0, challenge.slots[None]), challenge.experts.long()
    of_incumbents, of_challengers = scores.gather(0, incumbents), scores.gather(0, challengers)
    scores.scatter_(0, incumbents, torch.where(is_exchanged, of_challengers, of_incumbents))
    scores.scatter_(0, challengers, torch.where(is_exchanged, of_incumbents, of_challengers))


class Disturbance(NamedTuple):
    """A small, known change of the layer's output that the curvature is measured by.

    Attributes:
        pixels: where, flat numbers `(n,)`.
        signs: of the change, `(B, n)`; half of them negative, so that it has no direction.
    """

    pixels: torch.Tensor
    signs: torch.Tensor


def draw_disturbance(num_samples: int, num_pixels: int, number: int, device: torch.device) -> Disturbance:
    """Every 64th pixel, others each time; the sign alternates over the samples.

    Args:
        num_samples: B.
        num_pixels: H W.
        number: of the measurement; it decides the pixels and signs.
        device: of the result.
    """
    step = min(_PIXELS_PER_MEASUREMENT, num_pixels)
    pixels = torch.arange(number * 37 % step, num_pixels, step, device=device)
    is_negative = (pixels * 2654435761 + number * 40503) // 2**15 % 2
    alternating = torch.arange(num_samples, device=device)[:, None] + is_negative
    return Disturbance(pixels, 1.0 - 2.0 * (alternating % 2))


def disturb(selected: torch.Tensor, difference: torch.Tensor, slots: torch.Tensor, disturbance: Disturbance) -> None:
    """Adds plus or minus half of the difference to the incumbents' outputs at some pixels, in place.

    Args:
        selected: `(B, E * F, H, W)`, contiguous.
        difference: challenger's minus incumbent's output, `(B, F, H, W)`.
        slots: of the incumbents, `(H, W)`.
        disturbance: where, and which sign.
    """
    pixels, signs = disturbance
    expert_channels = difference.shape[1]
    change = difference.flatten(2)[:, :, pixels] * (_DISTURBANCE * signs[:, None]).to(difference.dtype)
    by_slot = selected.view(selected.shape[0], -1, expert_channels, slots.numel())
    # Two index tensors with a slice between them: the indexed dimension comes first.
    by_slot[:, slots.flatten()[pixels], :, pixels] += change.permute(2, 0, 1)


class Observation(NamedTuple):
    """What one backward pass says about the challenge.

    Attributes:
        slopes: g d, summed over the samples, `(H, W)`; zero where the output was disturbed.
        squares: their squares, summed over the samples, `(H, W)`: how uncertain the sum is.
        sizes: d^2, summed over the samples, `(H, W)`.
        curvature: numerator and denominator of the curvature, `(2,)`; zeros without a disturbance.
    """

    slopes: torch.Tensor
    squares: torch.Tensor
    sizes: torch.Tensor
    curvature: torch.Tensor


def observe(
    error: torch.Tensor,
    difference: torch.Tensor,
    slots: torch.Tensor,
    disturbance: Disturbance | None,
    loss_scale: float = 1.0,
) -> Observation:
    """Compares challengers with incumbents.

    Args:
        error: gradient of the loss at the layer's output, `(B, E * F, H, W)`.
        difference: challenger's minus incumbent's output, `(B, F, H, W)`.
        slots: of the incumbents, `(H, W)`.
        disturbance: that the output carried, if any.
        loss_scale: factor the loss was multiplied by before its backward; divided out.
    """
    difference = difference.float()
    slopes = (at_slots(error, slots, difference.shape[1]).float() * difference).sum(dim=1)
    if loss_scale != 1.0:
        slopes /= loss_scale
    sizes = difference.square().sum(dim=1)
    curvature = slopes.new_zeros(2)
    if disturbance is not None:
        curvature = measure_curvature(slopes, sizes, disturbance)
        slopes.flatten(1)[:, disturbance.pixels] = 0.0
    return Observation(slopes.sum(dim=0), slopes.square().sum(dim=0), sizes.sum(dim=0), curvature)


def measure_curvature(slopes: torch.Tensor, sizes: torch.Tensor, disturbance: Disturbance) -> torch.Tensor:
    """Numerator and denominator of the loss's mean curvature along the differences.

    Where the output is changed by s a d, with a random sign s and a = 1/2, the slope along d is
    g d + s a h d^2 to second order. Times s, the first term averages out: sum(s slope) / (a sum(d^2)) is h.

    Args:
        slopes: g d, `(B, H, W)`.
        sizes: d^2, `(B, H, W)`.
        disturbance: pixels and signs.
    """
    pixels, signs = disturbance
    rise = (slopes.flatten(1)[:, pixels] * signs).sum() / _DISTURBANCE
    return torch.stack([rise, sizes.flatten(1)[:, pixels].sum()])
