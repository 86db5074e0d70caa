"""Checks of the arguments and inputs of layers on a grid."""

from __future__ import annotations

import torch

from smoe.ops.padding import output_grid
from smoe.options import PADDING_MODES, PaddingMode


def check_spatial_shape(spatial_shape: tuple[int, int]) -> tuple[int, int]:
    """The rows and columns of an output grid."""
    shape = tuple(int(size) for size in spatial_shape)
    if len(shape) != 2 or min(shape) < 1:
        raise ValueError(f"spatial_shape must be (rows, columns) of the output grid, not {spatial_shape}")
    return shape[0], shape[1]


def check_grid(spatial_shape: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes of a grid with any number of axes; nodes of a graph have one."""
    shape = tuple(int(size) for size in spatial_shape)
    if not shape or min(shape) < 1:
        raise ValueError(f"spatial_shape must be the sizes of the output grid, not {tuple(spatial_shape)}")
    return shape


def check_kernel_size(kernel_size: int | tuple[int, int]) -> tuple[int, int]:
    """The rows and columns of a kernel that keeps the grid: both odd."""
    sizes = (kernel_size, kernel_size) if isinstance(kernel_size, int) else tuple(kernel_size)
    if len(sizes) != 2:
        raise ValueError(f"kernel_size must be one number or (rows, columns), got {kernel_size}")
    if min(sizes) < 1 or sizes[0] % 2 == 0 or sizes[1] % 2 == 0:
        raise ValueError(f"kernel_size must be odd, so that padding keeps the grid, got {kernel_size}")
    return sizes


def check_padding_mode(padding_mode: PaddingMode) -> PaddingMode:
    """The padding mode, if there is one of that name."""
    if padding_mode not in PADDING_MODES:
        raise ValueError(f"padding_mode must be one of {', '.join(PADDING_MODES)}, got {padding_mode!r}")
    return padding_mode


def check_positive(**numbers: int) -> None:
    """Refuses a count below 1, by its name."""
    for name, number in numbers.items():
        if number < 1:
            raise ValueError(f"{name} must be at least 1, got {number}")


def check_input(input: torch.Tensor, in_channels: int) -> None:
    """Refuses what is not a batch of grids with the layer's channels."""
    if input.ndim != 4 or input.shape[1] != in_channels:
        raise ValueError(f"input must be (B, {in_channels}, H, W), got shape {tuple(input.shape)}")


def check_output_grid(input: torch.Tensor, stride: int, spatial_shape: tuple[int, ...]) -> None:
    """Refuses an input whose output grid is not the one the layer was made for."""
    grid = output_grid(input.shape[2], input.shape[3], stride)
    if grid != spatial_shape:
        raise ValueError(
            f"the layer was made for an output grid of {spatial_shape}, but an input of "
            f"{tuple(input.shape[2:])} at stride {stride} has the output grid {grid}"
        )
