"""Borders of a convolution that keeps its grid: zeros, wrapped, or wrapped in longitude only."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from smoe.options import PADDING_MODES, PaddingMode


def output_grid(height: int, width: int, stride: int) -> tuple[int, int]:
    """Rows and columns of the output of a grid-keeping convolution with an odd kernel."""
    return (height - 1) // stride + 1, (width - 1) // stride + 1


def wrap_padding(
    input: torch.Tensor, kernel_size: tuple[int, int], padding_mode: PaddingMode
) -> tuple[torch.Tensor, tuple[int, int]]:
    """Wraps the borders that wrap, and says how many zeros are still to be added.

    The zeros are left to the convolution, which adds them without a copy of the input.

    Args:
        input: `(B, C, H, W)`.
        kernel_size: rows and columns of the kernel, both odd.
        padding_mode: `zeros`; `circular` wraps both axes; `longitude` wraps the width and leaves zeros on the height.

    Returns:
        The input with its wrapped borders, and the zeros to add on each side of the height and of the width.
    """
    rows, columns = kernel_size[0] // 2, kernel_size[1] // 2
    if padding_mode == "zeros":
        return input, (rows, columns)
    if padding_mode == "longitude":
        return _wrap(input, 0, columns), (rows, 0)
    if padding_mode == "circular":
        return _wrap(input, rows, columns), (0, 0)
    raise ValueError(f"padding_mode must be one of {', '.join(PADDING_MODES)}, got {padding_mode!r}")


def _wrap(input: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    height, width = input.shape[-2:]
    if rows <= height and columns <= width:
        return F.pad(input, (columns, columns, rows, rows), mode="circular") if rows or columns else input
    # F.pad wraps at most once around; a kernel wider than the grid goes round several times.
    row_index = torch.arange(-rows, height + rows, device=input.device) % height
    column_index = torch.arange(-columns, width + columns, device=input.device) % width
    return input[:, :, row_index[:, None], column_index]
