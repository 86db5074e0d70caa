"""The arithmetic of probing: the effect on the loss of an expert that is not selected. Pixels are flat.

At each pixel a *challenger* is evaluated beside the selected experts and compared with one of them, the *incumbent*.
With the difference d between their outputs and the error signal g, the gradient of the loss at the layer's output, the
exchange would change the loss by g d + h d^2 / 2, where h is the curvature of the loss along d. For a squared loss that
is exact. The curvature is measured, not assumed: see `measure_curvature`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from smoe.ops._operators import library_for, num_threads, register_operator

# One pixel of so many has its output disturbed in a pass that measures the curvature.
_PIXELS_PER_MEASUREMENT = 64
# Size of the disturbance, in units of the difference between the two experts' outputs.
_DISTURBANCE = 0.5


class Challenge(NamedTuple):
    """The pair of challenger and incumbent at each pixel.

    Attributes:
        experts: Challengers `(1, 1, P)`, int32; none of them is selected at its pixel.
        slots: Place `(P,)` of the incumbent among the selected experts, int64.
    """

    experts: torch.Tensor
    slots: torch.Tensor


def draw_challenge(indices: torch.Tensor, num_experts: int, round_number: int) -> Challenge:
    """Pairs, at each pixel, one expert that is not selected with one that is.

    Pixels start at different places and go round: while a pixel's choice stays, it meets every other expert within
    X - E rounds, and every pair within (X - E) E.

    Args:
        indices: Selected experts `(1, E, P)`.
        num_experts: X, more than E.
        round_number: Number of the round, counted up.
    """
    _, num_selected, num_pixels = indices.shape
    num_others = num_experts - num_selected
    # A multiplicative hash: neighbours get unrelated numbers, the same in every run and on every device.
    start = torch.arange(num_pixels, device=indices.device).mul_(2654435761).remainder_(2**32)
    place = (start // 64 + round_number) % num_others
    is_other = torch.ones(num_experts, num_pixels, dtype=torch.int32, device=indices.device)
    is_other.scatter_(0, indices[0].long(), 0)
    # The experts that are not selected, numbered in ascending order.
    number = is_other.cumsum(0, dtype=torch.int32)
    experts = ((number == place + 1) & (is_other > 0)).to(torch.uint8).argmax(dim=0)
    slots = (start // 2**14 + round_number % num_others + round_number // num_others) % num_selected
    return Challenge(experts.to(torch.int32)[None, None], slots)


def exchange_scores(
    scores: torch.Tensor, indices: torch.Tensor, challenge: Challenge, is_exchanged: torch.Tensor
) -> None:
    """Exchanges the scores of challengers and incumbents, in place.

    The challenger takes exactly the incumbent's place; all other experts keep theirs.

    Args:
        scores: `(X, P)`.
        indices: Selected experts `(1, E, P)`, by descending score.
        challenge: The pairs.
        is_exchanged: Where to exchange, bool `(P,)`.
    """
    incumbents, challengers = indices[0].long().gather(0, challenge.slots[None]), challenge.experts[0].long()
    of_incumbents, of_challengers = scores.gather(0, incumbents), scores.gather(0, challengers)
    scores.scatter_(0, incumbents, torch.where(is_exchanged, of_challengers, of_incumbents))
    scores.scatter_(0, challengers, torch.where(is_exchanged, of_incumbents, of_challengers))


class Disturbance(NamedTuple):
    """A small, known change of the layer's output that the curvature is measured by.

    Attributes:
        pixels: Numbers of the changed pixels `(n,)`.
        signs: Signs of the change, `(B, n)`; half of them negative, so that it has no direction.
    """

    pixels: torch.Tensor
    signs: torch.Tensor


def draw_disturbance(num_samples: int, num_pixels: int, number: int, device: torch.device) -> Disturbance:
    """Chooses every 64th pixel, others each time; the sign alternates over the samples.

    Args:
        num_samples: B.
        num_pixels: P.
        number: Number of the measurement; it decides the pixels and signs.
        device: Device of the result.
    """
    step = min(_PIXELS_PER_MEASUREMENT, num_pixels)
    pixels = torch.arange(number * 37 % step, num_pixels, step, device=device)
    is_negative = (pixels * 2654435761 + number * 40503) // 2**15 % 2
    alternating = torch.arange(num_samples, device=device)[:, None] + is_negative
    return Disturbance(pixels, 1.0 - 2.0 * (alternating % 2))


def disturb(selected: torch.Tensor, difference: torch.Tensor, slots: torch.Tensor, disturbance: Disturbance) -> None:
    """Adds plus or minus half of the difference to the incumbents' outputs at some pixels, in place.

    Args:
        selected: `(B, E * F, P)`.
        difference: Challenger's minus incumbent's output, `(B, F, P)`.
        slots: Slots of the incumbents, `(P,)`.
        disturbance: Pixels and signs.
    """
    pixels, signs = disturbance
    expert_channels = difference.shape[1]
    change = difference[:, :, pixels] * (_DISTURBANCE * signs[:, None]).to(difference.dtype)
    by_slot = selected.unflatten(1, (-1, expert_channels))
    # Two index tensors with a slice between them: the indexed dimension comes first.
    by_slot[:, slots[pixels], :, pixels] += change.permute(2, 0, 1)


class Observation(NamedTuple):
    """The measurements of one backward pass.

    Attributes:
        slopes: g d, summed over the samples, `(P,)`; zero where the output was disturbed.
        squares: Squares of g d, summed over the samples, `(P,)`: how uncertain the sum is.
        sizes: d^2, summed over the samples, `(P,)`.
        curvature: Numerator and denominator of the curvature, `(2,)`; zeros without a disturbance.
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
    loss_scale: torch.Tensor | None = None,
) -> Observation:
    """Compares challengers with incumbents.

    Args:
        error: Gradient of the loss at the layer's output, `(B, E * F, P)`.
        difference: Challenger's minus incumbent's output, `(B, F, P)`.
        slots: Slots of the incumbents, `(P,)`.
        disturbance: Disturbance of the output, if any.
        loss_scale: Factor of the loss before its backward, which is divided out; None for 1.
    """
    if disturbance is None:
        loss_scale = torch.ones((), device=error.device) if loss_scale is None else loss_scale
        slopes, squares, sizes = sum_over_samples(error, difference, slots, loss_scale)
        return Observation(slopes, squares, sizes, slopes.new_zeros(2))
    difference = difference.float()
    slopes = (at_slots(error, slots, difference.shape[1]).float() * difference).sum(dim=1)
    slopes = slopes if loss_scale is None else slopes / loss_scale
    sizes = difference.square().sum(dim=1)
    curvature = measure_curvature(slopes, sizes, disturbance)
    slopes[:, disturbance.pixels] = 0.0
    return Observation(slopes.sum(dim=0), slopes.square().sum(dim=0), sizes.sum(dim=0), curvature)


def measure_curvature(slopes: torch.Tensor, sizes: torch.Tensor, disturbance: Disturbance) -> torch.Tensor:
    """Numerator and denominator of the loss's mean curvature along the differences.

    Where the output is changed by s a d, with a random sign s and a = 1/2, the slope along d is
    g d + s a h d^2 to second order. Times s, the first term averages out: sum(s slope) / (a sum(d^2)) is h.

    Args:
        slopes: g d, `(B, P)`.
        sizes: d^2, `(B, P)`.
        disturbance: Pixels and signs.
    """
    pixels, signs = disturbance
    rise = (slopes[:, pixels] * signs).sum() / _DISTURBANCE
    return torch.stack([rise, sizes[:, pixels].sum()])


def at_slots(values: torch.Tensor, slots: torch.Tensor, expert_channels: int) -> torch.Tensor:
    """Outputs, or errors, `(B, F, P)` of one slot at each pixel, out of `(B, E * F, P)`."""
    if values.shape[1] == expert_channels:
        return values
    by_slot = values.unflatten(1, (-1, expert_channels))
    shape = (values.shape[0], 1, expert_channels, len(slots))
    return by_slot.gather(1, slots.expand(shape)).squeeze(1)


def _dense(
    error: torch.Tensor, difference: torch.Tensor, slots: torch.Tensor, loss_scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    difference = difference.float()
    slopes = (at_slots(error, slots, difference.shape[1]).float() * difference).sum(dim=1) / loss_scale
    return slopes.sum(dim=0), slopes.square().sum(dim=0), difference.square().sum(dim=(0, 1))


def _native(
    error: torch.Tensor, difference: torch.Tensor, slots: torch.Tensor, loss_scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    library = library_for(error, difference)
    if library is None or slots.device.type != "cpu":
        return _dense(error, difference, slots, loss_scale)
    error, difference, slots = error.contiguous(), difference.contiguous(), slots.contiguous()
    batch, outputs, pixels = difference.shape
    sums = [error.new_empty(pixels) for _ in range(3)]
    sizes = (batch, error.shape[1] // outputs, outputs, pixels)
    library.call("smoe_observe_probe", error, difference, slots, loss_scale.float(), *sizes, *sums, num_threads())
    slopes, squares, sizes_of_differences = sums
    return slopes, squares, sizes_of_differences


def _fake(
    error: torch.Tensor, difference: torch.Tensor, slots: torch.Tensor, loss_scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    del difference, loss_scale
    slopes, squares, sizes = (error.new_empty(slots.shape, dtype=torch.float32) for _ in range(3))
    return slopes, squares, sizes


sum_over_samples = register_operator(
    "observe_probe(Tensor error, Tensor difference, Tensor slots, Tensor loss_scale) -> (Tensor, Tensor, Tensor)",
    dense=_dense,
    native=_native,
    fake=_fake,
)
"""Slopes, their squares and the squared differences, each summed over the samples, `(P,)`.

Args:
    error: Error signal `(B, E * F, P)`.
    difference: Challenger's minus incumbent's output, `(B, F, P)`.
    slots: Slots of the incumbents, `(P,)`, int64.
    loss_scale: Factor of the loss before its backward pass, a scalar.
"""
