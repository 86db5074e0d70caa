"""The routing classification gradient and the damping on a GPU, in few passes over the error and without the host.

The error is read once for its sizes, which are stored in float32 and from which the quantile is selected
(`error_quantile`), and once more for the damped error and the number of wrong choices. The gradient of the scores then
follows from these numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from smoe.ops.triton.blocks import block_and_sample
from smoe.ops.triton.error_quantile import triton_error_quantile
from smoe.ops.triton.launch import ceil_div, launch, power_of_two

# All slots of a pixel are in one block, because the label of the experts that are not selected needs their sum.
_ELEMENTS_PER_PROGRAM = 4096
_ENOUGH_PROGRAMS = 512


@triton.jit
def error_size_kernel(
    error,
    sizes,
    is_nonfinite,
    factor,
    num_selected,
    num_pixels,
    error_sample_stride,
    error_channel_stride,
    error_pixel_stride,
    size_sample_stride,
    size_slot_stride,
    size_pixel_stride,
    EXPERT_CHANNELS: tl.constexpr,
    SLOTS: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """Writes the size of the errors of one sample and block of pixels: the mean of |error| over an expert's outputs."""
    pixel_blocks = tl.cdiv(num_pixels, PIXELS)
    block, sample = block_and_sample(pixel_blocks)
    pixels = block * PIXELS + tl.arange(0, PIXELS)
    slots = tl.arange(0, SLOTS)
    is_here = (slots < num_selected)[:, None] & (pixels < num_pixels)[None, :]
    total = tl.zeros((SLOTS, PIXELS), dtype=tl.float32)
    place = sample * error_sample_stride + pixels[None, :] * error_pixel_stride
    for output in range(EXPERT_CHANNELS):
        channel = (slots * EXPERT_CHANNELS + output)[:, None] * error_channel_stride
        total += tl.abs(tl.load(error + place + channel, mask=is_here, other=0.0).to(tl.float32))
    total = total / EXPERT_CHANNELS * tl.load(factor)
    tl.store(
        sizes + sample * size_sample_stride + slots[:, None] * size_slot_stride + pixels[None, :] * size_pixel_stride,
        total,
        mask=is_here,
    )
    # A size is infinite or NaN exactly if it is not below infinity.
    is_bad = is_here & ((total < float("inf")) == 0)
    tl.atomic_max(is_nonfinite, tl.max(tl.max(is_bad.to(tl.int32), axis=1), axis=0), sem="relaxed")


@triton.jit
def damp_and_count_kernel(
    error,
    sizes,
    thresholds,
    damping_thresholds,
    damped,
    wrong,
    unselected,
    damping,
    num_samples,
    num_selected,
    num_pixels,
    num_unselected,
    samples_each,
    error_sample_stride,
    error_channel_stride,
    error_pixel_stride,
    size_sample_stride,
    size_slot_stride,
    size_pixel_stride,
    DAMPS: tl.constexpr,
    COUNTS: tl.constexpr,
    EXPERT_CHANNELS: tl.constexpr,
    SLOTS: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """Writes the damped error of a share of the samples, and their sums of wrong choices and of labels."""
    pixel_blocks = tl.cdiv(num_pixels, PIXELS)
    block, share = block_and_sample(pixel_blocks)
    pixels = block * PIXELS + tl.arange(0, PIXELS)
    slots = tl.arange(0, SLOTS)
    is_here = (slots < num_selected)[:, None] & (pixels < num_pixels)[None, :]
    num_wrong = tl.zeros((SLOTS, PIXELS), dtype=tl.float32)
    label = tl.zeros((PIXELS,), dtype=tl.float32)
    first = share * samples_each
    for sample in range(first, tl.minimum(first + samples_each, num_samples)):
        place = slots[:, None] * size_slot_stride + pixels[None, :] * size_pixel_stride
        size = tl.load(sizes + sample * size_sample_stride + place, mask=is_here, other=0.0)
        if COUNTS:
            is_wrong = (is_here & (size > tl.load(thresholds + sample))).to(tl.float32)
            num_wrong += is_wrong
            label += tl.minimum(tl.sum(is_wrong, axis=0) / num_unselected, 1.0)
        if DAMPS:
            is_damped = size > tl.load(damping_thresholds + sample)
            place = sample * error_sample_stride + pixels[None, :] * error_pixel_stride
            for output in range(EXPERT_CHANNELS):
                channel = (slots * EXPERT_CHANNELS + output)[:, None] * error_channel_stride
                value = tl.load(error + place + channel, mask=is_here, other=0.0).to(tl.float32)
                # A product, so that an overflowed error stays visible to a loss scaler even where the damping is 0.
                value = tl.where(is_damped, value * damping, value)
                tl.store(damped + place + channel, value.to(damped.dtype.element_ty), mask=is_here)
    if COUNTS:
        tl.store(
            wrong + (share * num_selected + slots)[:, None] * num_pixels + pixels[None, :], num_wrong, mask=is_here
        )
        tl.store(unselected + share * num_pixels + pixels, label, mask=pixels < num_pixels)


@triton.jit
def gradient_kernel(
    scores,
    indices,
    wrong,
    unselected,
    is_nonfinite,
    factor,
    gradient,
    num_experts,
    num_selected,
    num_pixels,
    EXPERTS: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """Writes `(sigmoid(score) - label) * factor` for one sample of the scores and a block of experts and pixels."""
    pixel_blocks = tl.cdiv(num_pixels, PIXELS)
    block, sample = block_and_sample(pixel_blocks)
    pixels = block * PIXELS + tl.arange(0, PIXELS)
    experts = tl.program_id(1) * EXPERTS + tl.arange(0, EXPERTS)
    is_pixel = pixels < num_pixels
    label = tl.load(unselected + sample * num_pixels + pixels, mask=is_pixel, other=0.0)
    label = tl.broadcast_to(label[None, :], (EXPERTS, PIXELS))
    for slot in range(num_selected):
        place = (sample * num_selected + slot) * num_pixels + pixels
        chosen = tl.load(indices + place, mask=is_pixel, other=-1)
        right = 1.0 - tl.load(wrong + place, mask=is_pixel, other=0.0)
        label = tl.where(chosen[None, :] == experts[:, None], right[None, :], label)
    place = (sample * num_experts + experts)[:, None] * num_pixels + pixels[None, :]
    is_here = (experts < num_experts)[:, None] & is_pixel[None, :]
    score = tl.load(scores + place, mask=is_here, other=0.0)
    value = (1.0 / (1.0 + tl.exp(-score)) - label) * tl.load(factor)
    tl.store(gradient + place, tl.where(tl.load(is_nonfinite) > 0, 0.0, value), mask=is_here)


class _Blocks(NamedTuple):
    slots: int
    pixels: int

    @classmethod
    def for_slots(cls, num_selected: int) -> _Blocks:
        slots = power_of_two(num_selected)
        return cls(slots, min(max(_ELEMENTS_PER_PROGRAM // slots, 16), 128))

    def options(self, expert_channels: int) -> dict[str, int]:
        # With four warps, a block of this size spills registers in some layouts (paper/results/gpu).
        is_large = self.slots * self.pixels >= _ELEMENTS_PER_PROGRAM
        sizes = {"EXPERT_CHANNELS": expert_channels, "SLOTS": self.slots, "PIXELS": self.pixels}
        return {**sizes, "num_warps": 8 if is_large else 4}


def triton_train_routing_backward(
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
    """The damped error `(B, E * F, P)` and the gradient of the scores `(1 or B, X, P)`; arguments as the operator's."""
    damped = torch.empty_like(error)
    if damped.stride() != error.stride():
        # An expanded or sliced error; what is returned has the strides of a new tensor.
        error = damped.clone().copy_(error)
    num_samples, _, num_pixels = error.shape
    num_selected = indices.shape[1]
    blocks = _Blocks.for_slots(num_selected)
    options = blocks.options(expert_channels)
    pixel_blocks = ceil_div(num_pixels, blocks.pixels)
    sizes, is_nonfinite = _error_sizes(error, num_selected, loss_scale, pixel_blocks, options)
    num_nonfinite += is_nonfinite[0]
    # The order of the values does not matter for a quantile: they are taken as they are in memory.
    in_memory = sizes if sizes.is_contiguous() else sizes.transpose(1, 2)
    threshold = triton_error_quantile(in_memory, error_quantile)
    units = 1.0 if unit is None else unit
    thresholds = [(threshold + margin * units).to(torch.float32) for margin in (tolerance, damping_tolerance)]

    is_shared = scores.shape[0] == 1
    shares = num_samples
    if is_shared:
        shares = max(1, min(num_samples, _ENOUGH_PROGRAMS // pixel_blocks))
    samples_each = ceil_div(num_samples, shares)
    shares = ceil_div(num_samples, samples_each)
    num_unselected = scores.shape[1] - num_selected
    if damping is None:
        damped.copy_(error)
    wrong = sizes.new_empty((shares, num_selected, num_pixels) if trains_gate else (0,))
    unselected = sizes.new_empty((shares, num_pixels) if trains_gate else (0,))
    if trains_gate or damping is not None:
        launch(
            *(damp_and_count_kernel, (pixel_blocks * shares,), error, sizes, *thresholds, damped, wrong, unselected),
            *(0.0 if damping is None else damping, num_samples, num_selected, num_pixels, num_unselected),
            *(samples_each, *error.stride(), *sizes.stride()),
            DAMPS=damping is not None,
            COUNTS=trains_gate,
            **options,
        )
    if not trains_gate:
        return damped, scores.new_empty(0)
    if is_shared:
        wrong, unselected = (counts.sum(dim=0, keepdim=True) / num_samples for counts in (wrong, unselected))
    return damped, _gradient(scores, indices, wrong, unselected, is_nonfinite, rc_weight * loss_scale)


def _error_sizes(
    error: torch.Tensor, num_selected: int, loss_scale: torch.Tensor, pixel_blocks: int, options: dict[str, int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sizes `(B, E, P)` in the layout of the error, and a flag `(1,)` whether one is not finite."""
    num_samples, _, num_pixels = error.shape
    if error.stride(1) == 1 and num_pixels > 1:
        shape = (num_samples, num_pixels, num_selected)
        sizes = torch.empty(shape, dtype=torch.float32, device=error.device).transpose(1, 2)
    else:
        sizes = torch.empty(num_samples, num_selected, num_pixels, dtype=torch.float32, device=error.device)
    is_nonfinite = torch.zeros(1, dtype=torch.int32, device=error.device)
    factor = ((error.numel() / 2) / loss_scale.abs()).to(torch.float32)
    launch(
        *(error_size_kernel, (pixel_blocks * num_samples,), error, sizes, is_nonfinite, factor, num_selected),
        num_pixels,
        *(*error.stride(), *sizes.stride()),
        **options,
    )
    return sizes, is_nonfinite


def _gradient(
    scores: torch.Tensor,
    indices: torch.Tensor,
    wrong: torch.Tensor,
    unselected: torch.Tensor,
    is_nonfinite: torch.Tensor,
    weight: torch.Tensor,
) -> torch.Tensor:
    """The gradient of the scores from the mean labels of each of their samples."""
    scores, indices = scores.contiguous(), indices.contiguous()
    num_samples, num_experts, num_pixels = scores.shape
    gradient = torch.empty_like(scores)
    factor = (weight / scores.numel()).to(torch.float32)
    grid = (ceil_div(num_pixels, 64) * num_samples, ceil_div(num_experts, 32))
    launch(
        *(gradient_kernel, grid, scores, indices, wrong, unselected, is_nonfinite, factor, gradient),
        *(num_experts, indices.shape[1], num_pixels),
        EXPERTS=32,
        PIXELS=64,
    )
    return gradient
