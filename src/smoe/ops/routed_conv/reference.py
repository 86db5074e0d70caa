"""The definition of the routed convolution, written to be read: the truth of every test."""

from __future__ import annotations

import torch

from smoe.ops.padding import output_grid
from smoe.options import PaddingMode


def reference_routed_conv2d(
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    *,
    expert_channels: int = 1,
    stride: int = 1,
    padding_mode: PaddingMode = "zeros",
) -> torch.Tensor:
    """Loops over samples, pixels, selected experts and taps; arguments as `smoe.ops.routed_conv2d`.

    Autograd differentiates it, so it defines the gradients too. Use it on small grids.
    """
    B, _, H, W = input.shape
    kernel_height, kernel_width = weight.shape[2:]
    output_height, output_width = output_grid(H, W, stride)
    indices = indices.expand(B, -1, -1).unflatten(2, (output_height, output_width))
    E = indices.shape[1]
    experts = weight.unflatten(0, (-1, expert_channels))

    def pixel(sample: int, row: int, column: int) -> torch.Tensor:
        if padding_mode in ("circular", "longitude"):
            column %= W
        if padding_mode == "circular":
            row %= H
        if not (0 <= row < H and 0 <= column < W):
            return torch.zeros_like(input[sample, :, 0, 0])
        return input[sample, :, row, column]

    def output_pixel(sample: int, slot: int, row: int, column: int) -> torch.Tensor:
        expert = experts[int(indices[sample, slot, row, column])]
        total = torch.zeros_like(expert[:, 0, 0, 0])
        for i in range(kernel_height):
            for j in range(kernel_width):
                source = pixel(sample, row * stride + i - kernel_height // 2, column * stride + j - kernel_width // 2)
                total = total + expert[:, :, i, j] @ source
        return total

    pixels = [
        output_pixel(sample, slot, row, column)
        for sample in range(B)
        for slot in range(E)
        for row in range(output_height)
        for column in range(output_width)
    ]
    stacked = torch.stack(pixels).reshape(B, E, output_height, output_width, expert_channels)
    return stacked.permute(0, 1, 4, 2, 3).flatten(1, 2)
