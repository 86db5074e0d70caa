"""Where each channel of the bank is among the selected channels of a pixel: the inverse of a routing, on a GPU."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from smoe.ops.triton.blocks import block_and_sample
from smoe.ops.triton.launch import ceil_div, launch

SLOTS_PER_PROGRAM = 32
PIXELS_PER_PROGRAM = 64


@triton.jit
def slot_kernel(
    channels,
    slots,
    num_selected,
    num_pixels,
    channel_sample_stride,
    channel_slot_stride,
    channel_pixel_stride,
    slot_sample_stride,
    slot_channel_stride,
    slot_pixel_stride,
    SLOTS: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """`slots[sample, channels[sample, number, pixel], pixel] = number`; the channels of a pixel are distinct."""
    pixel_blocks = tl.cdiv(num_pixels, PIXELS)
    block, sample = block_and_sample(pixel_blocks)
    pixels = (block * PIXELS + tl.arange(0, PIXELS))[None, :]
    numbers = (tl.program_id(1) * SLOTS + tl.arange(0, SLOTS))[:, None]
    is_here = (numbers < num_selected) & (pixels < num_pixels)
    place = sample * channel_sample_stride + numbers * channel_slot_stride + pixels * channel_pixel_stride
    channel = tl.load(channels + place, mask=is_here, other=0)
    place = sample * slot_sample_stride + channel * slot_channel_stride + pixels * slot_pixel_stride
    tl.store(slots + place, tl.broadcast_to(numbers, (SLOTS, PIXELS)), mask=is_here)


def find_slots(channels: torch.Tensor, num_channels: int, *, channels_last: bool) -> torch.Tensor:
    """The slot of every channel of the bank at every pixel, `(S, num_channels, P)` int32, -1 where there is none.

    Args:
        channels: Selected channels `(S, M, P)`, int32, distinct at each pixel.
        num_channels: Channels of the bank.
        channels_last: Whether the channels of a pixel are side by side in memory, and not the pixels of a channel.
    """
    num_samples, num_selected, num_pixels = channels.shape
    if channels_last:
        slots = channels.new_full((num_samples, num_pixels, num_channels), -1).transpose(1, 2)
    else:
        slots = channels.new_full((num_samples, num_channels, num_pixels), -1)
    if channels.numel():
        grid = (ceil_div(num_pixels, PIXELS_PER_PROGRAM) * num_samples, ceil_div(num_selected, SLOTS_PER_PROGRAM))
        launch(
            *(slot_kernel, grid, channels, slots, num_selected, num_pixels, *channels.stride(), *slots.stride()),
            SLOTS=SLOTS_PER_PROGRAM,
            PIXELS=PIXELS_PER_PROGRAM,
        )
    return slots
