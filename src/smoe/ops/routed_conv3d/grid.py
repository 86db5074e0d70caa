"""Borders and output grids of convolutions in a volume."""

from __future__ import annotations

from collections.abc import Sequence

VOLUME_PADDINGS = ("zeros", "circular", "none")


def volume_padding(kernel: Sequence[int], padding_mode: str) -> tuple[int, int, int]:
    """Slices, rows and columns beyond each border that a kernel with odd sizes reads."""
    if padding_mode == "none":
        return 0, 0, 0
    depth, rows, columns = (size // 2 for size in kernel)
    return depth, rows, columns


def volume_grid(sizes: Sequence[int], kernel: Sequence[int], stride: int, padding_mode: str) -> tuple[int, int, int]:
    """Depth, rows and columns of the output."""
    padding = volume_padding(kernel, padding_mode)
    depth, rows, columns = (
        (size + 2 * extra - taps) // stride + 1 for size, taps, extra in zip(sizes, kernel, padding, strict=True)
    )
    return depth, rows, columns
