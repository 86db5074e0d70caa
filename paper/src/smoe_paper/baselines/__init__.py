"""Layers and gates that the paper compares with, and what they check of their arguments."""

from __future__ import annotations

import torch

from smoe.ops import output_grid


def check_kernel_size(kernel_size: int | tuple[int, int]) -> tuple[int, int]:
    sizes = (kernel_size, kernel_size) if isinstance(kernel_size, int) else tuple(kernel_size)
    if len(sizes) != 2 or min(sizes) < 1 or sizes[0] % 2 == 0 or sizes[1] % 2 == 0:
        raise ValueError(
            f"kernel_size must be odd, so that padding keeps the grid: one number or (rows, columns), got {kernel_size}"
        )
    return sizes


def check_input(input: torch.Tensor, in_channels: int) -> None:
    if input.ndim != 4 or input.shape[1] != in_channels:
        raise ValueError(f"input must be (B, {in_channels}, H, W), got shape {tuple(input.shape)}")


def check_output_grid(input: torch.Tensor, stride: int, spatial_shape: tuple[int, ...]) -> None:
    grid = output_grid(input.shape[2], input.shape[3], stride)
    if grid != spatial_shape:
        wanted = tuple(size * stride for size in spatial_shape)
        raise ValueError(
            f"the layer was made for an output grid of {spatial_shape}, that of inputs of {wanted}, but an input of "
            f"{tuple(input.shape[2:])} at stride {stride} has the output grid {grid}: resize the input, or the layers "
            "by smoe.interpolate_grids"
        )
