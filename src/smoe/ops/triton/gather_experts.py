"""Picking channels of the bank's outputs at each pixel, and putting them back, on a GPU.

Both are one pass with int32 indices, in the memory format of their argument. The transpose writes every element once:
the channels of a pixel are distinct, so that each place has at most one source and nothing is added.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from smoe.ops._gather import fold_channels
from smoe.ops.triton.blocks import block_and_sample
from smoe.ops.triton.launch import ceil_div, launch
from smoe.ops.triton.slots import find_slots

CHANNELS_PER_PROGRAM = 32
PIXELS_PER_PROGRAM = 64


@triton.jit
def gather_kernel(
    values,
    sources,
    result,
    num_channels,
    num_pixels,
    source_sample_stride,
    value_sample_stride,
    value_channel_stride,
    value_pixel_stride,
    source_channel_stride,
    source_pixel_stride,
    result_sample_stride,
    result_channel_stride,
    result_pixel_stride,
    CHANNELS: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """`result[sample, channel, pixel] = values[sample, sources[channel, pixel], pixel]`, 0 for a negative source."""
    pixel_blocks = tl.cdiv(num_pixels, PIXELS)
    block, sample = block_and_sample(pixel_blocks)
    pixels = block * PIXELS + tl.arange(0, PIXELS)
    channels = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    is_here = (channels < num_channels)[:, None] & (pixels < num_pixels)[None, :]
    source = tl.load(
        sources
        + sample * source_sample_stride
        + channels[:, None] * source_channel_stride
        + pixels[None, :] * source_pixel_stride,
        mask=is_here,
        other=-1,
    )
    value = tl.load(
        values + sample * value_sample_stride + source * value_channel_stride + pixels[None, :] * value_pixel_stride,
        mask=source >= 0,
        other=0.0,
    )
    tl.store(
        result
        + sample * result_sample_stride
        + channels[:, None] * result_channel_stride
        + pixels[None, :] * result_pixel_stride,
        value,
        mask=is_here,
    )


def triton_gather_experts(outputs: torch.Tensor, indices: torch.Tensor, expert_channels: int) -> torch.Tensor:
    """As `smoe.ops._gather`, without a gradient."""
    channels = fold_channels(indices, expert_channels)
    return triton_gather_channels(outputs.flatten(2), channels).unflatten(2, outputs.shape[2:])


def triton_scatter_experts(
    selected: torch.Tensor, indices: torch.Tensor, num_experts: int, expert_channels: int
) -> torch.Tensor:
    """As `smoe.ops._gather.scatter_experts`, without a gradient."""
    channels = fold_channels(indices, expert_channels)
    scattered = triton_scatter_channels(selected.flatten(2), channels, num_experts * expert_channels)
    return scattered.unflatten(2, selected.shape[2:])


def triton_gather_channels(values: torch.Tensor, channels: torch.Tensor) -> torch.Tensor:
    """`(B, N, P)` at int32 channels `(1 or B, M, P)`: `(B, M, P)`, in the memory format of the values."""
    return _pick(values, channels, channels.shape[1])


def triton_scatter_channels(values: torch.Tensor, channels: torch.Tensor, num_channels: int) -> torch.Tensor:
    """`(B, M, P)` to int32 channels `(1 or B, M, P)` in zeros `(B, num_channels, P)`, in the format of the values."""
    return _pick(values, find_slots(channels, num_channels, channels_last=_has_channels_last(values)), num_channels)


def _has_channels_last(values: torch.Tensor) -> bool:
    return values.stride(1) == 1 and values.shape[2] > 1 and not values.is_contiguous()


def _pick(values: torch.Tensor, sources: torch.Tensor, num_channels: int) -> torch.Tensor:
    num_samples, _, num_pixels = values.shape
    if _has_channels_last(values):
        result = values.new_empty(num_samples, num_pixels, num_channels).transpose(1, 2)
    else:
        result = values.new_empty(num_samples, num_channels, num_pixels)
    if result.numel() == 0:
        return result
    grid = (ceil_div(num_pixels, PIXELS_PER_PROGRAM) * num_samples, ceil_div(num_channels, CHANNELS_PER_PROGRAM))
    source_sample_stride = sources.stride(0) if sources.shape[0] > 1 else 0
    launch(
        *(gather_kernel, grid, values, sources, result, num_channels, num_pixels, source_sample_stride),
        *(*values.stride(), sources.stride(1), sources.stride(2), *result.stride()),
        CHANNELS=CHANNELS_PER_PROGRAM,
        PIXELS=PIXELS_PER_PROGRAM,
    )
    return result
