"""Layers and gates that the paper compares with, and what they check of their arguments."""

from __future__ import annotations

from numbers import Integral

import torch

from smoe.ops import output_grid
from smoe.options import PADDING_MODES, PaddingMode


def check_positive(**numbers: int) -> None:
    for name, number in numbers.items():
        if not isinstance(number, Integral) or number < 1:
            kind = "at least 1" if isinstance(number, Integral) else "an integer"
            raise ValueError(f"{name} must be {kind}, got {number!r}")


def check_spatial_shape(spatial_shape: tuple[int, int]) -> tuple[int, int]:
    shape = tuple(int(size) for size in spatial_shape)
    if len(shape) != 2 or min(shape) < 1:
        raise ValueError(f"spatial_shape must be (rows, columns) of the output grid, not {spatial_shape}")
    return shape[0], shape[1]


def check_kernel_size(kernel_size: int | tuple[int, int]) -> tuple[int, int]:
    sizes = (kernel_size, kernel_size) if isinstance(kernel_size, int) else tuple(kernel_size)
    if len(sizes) != 2 or min(sizes) < 1 or sizes[0] % 2 == 0 or sizes[1] % 2 == 0:
        raise ValueError(
            f"kernel_size must be odd, so that padding keeps the grid: one number or (rows, columns), got {kernel_size}"
        )
    return sizes


def check_padding_mode(padding_mode: PaddingMode) -> PaddingMode:
    if padding_mode not in PADDING_MODES:
        raise ValueError(f"padding_mode must be one of {', '.join(PADDING_MODES)}, got {padding_mode!r}")
    return padding_mode


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
