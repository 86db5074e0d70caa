"""The borders of a convolution that keeps its grid: zeros, both axes wrapped, or the width wrapped."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from smoe.options import PADDING_MODES, PaddingMode


def output_grid(height: int, width: int, stride: int) -> tuple[int, int]:
    """Rows and columns of the output of a convolution that keeps its grid at stride 1."""
    return (height - 1) // stride + 1, (width - 1) // stride + 1


def wrap_padding(
    input: torch.Tensor, kernel_size: tuple[int, int], padding_mode: PaddingMode
) -> tuple[torch.Tensor, tuple[int, int]]:
    """Pads the axes that wrap, and returns the number of zeros that remain to be added.

    The zeros are left to the convolution, which adds them without a copy of the input.

    Args:
        input: `(B, C, H, W)`.
        kernel_size: Rows and columns of the kernel, both odd.
        padding_mode: `zeros`; `circular` wraps both axes; `longitude` wraps the width and leaves zeros on the height.

    Returns:
        The input with its wrapped borders, and the zeros to add on each side of the height and of the width.
    """
    (rows, columns), zeros = _split_border(kernel_size, padding_mode)
    return (_wrap(input, rows, columns) if rows or columns else input), zeros


def unwrap_padding(
    gradient: torch.Tensor, grid: tuple[int, int], kernel_size: tuple[int, int], padding_mode: PaddingMode
) -> torch.Tensor:
    """The transpose of `wrap_padding`: adds the gradient of each wrapped border to the pixels that it copies.

    Args:
        gradient: Gradient at the padded input, `(B, C, *padded grid)`.
        grid: Rows and columns of the input.
        kernel_size: Rows and columns of the kernel, both odd.
        padding_mode: Padding mode.

    Returns:
        `(B, C, *grid)`.
    """
    (rows, columns), _ = _split_border(kernel_size, padding_mode)
    return _unwrap_axis(_unwrap_axis(gradient, 2, grid[0], rows), 3, grid[1], columns)


def _split_border(kernel_size: tuple[int, int], padding_mode: PaddingMode) -> tuple[tuple[int, int], tuple[int, int]]:
    """Rows and columns of the border that wraps, and of the border of zeros."""
    rows, columns = kernel_size[0] // 2, kernel_size[1] // 2
    if padding_mode == "zeros":
        return (0, 0), (rows, columns)
    if padding_mode == "longitude":
        return (0, columns), (rows, 0)
    if padding_mode == "circular":
        return (rows, columns), (0, 0)
    raise ValueError(f"padding_mode must be one of {', '.join(PADDING_MODES)}, got {padding_mode!r}")


def _unwrap_axis(gradient: torch.Tensor, dim: int, size: int, border: int) -> torch.Tensor:
    if border == 0:
        return gradient
    total = gradient.narrow(dim, border, size).clone()
    # The border holds whole and partial copies of the axis: copy k begins at border + k * size.
    for copy in range(-(-border // size), 0, -1):
        begin = max(border - copy * size, 0)
        length = border - (copy - 1) * size - begin
        total.narrow(dim, size - length, length).add_(gradient.narrow(dim, begin, length))
        begin = border + copy * size
        length = min(begin + size, size + 2 * border) - begin
        total.narrow(dim, 0, length).add_(gradient.narrow(dim, begin, length))
    return total


def _wrap(input: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    height, width = input.shape[-2:]
    if rows <= height and columns <= width:
        return F.pad(input, (columns, columns, rows, rows), mode="circular")
    # F.pad wraps at most once around; a kernel wider than the grid goes round several times.
    row_index = torch.arange(-rows, height + rows, device=input.device) % height
    column_index = torch.arange(-columns, width + columns, device=input.device) % width
    return input[:, :, row_index[:, None], column_index]
