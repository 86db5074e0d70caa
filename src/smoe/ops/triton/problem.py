"""What the kernels of the routed convolution have in common: the grid, the border and the precision of a problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from smoe.ops.padding import output_grid
from smoe.ops.triton.tiles import Tile


@dataclass(frozen=True)
class Problem:
    """A routed convolution apart from its tensors.

    Attributes:
        height: Rows of the input.
        width: Columns of the input.
        kernel_height: Rows of a filter.
        kernel_width: Columns of a filter.
        stride: Stride of both axes.
        padding_mode: `zeros`, `circular` or `longitude`.
        precision: `tf32` or `ieee`, for float32 operands.
    """

    height: int
    width: int
    kernel_height: int
    kernel_width: int
    stride: int
    padding_mode: str
    precision: str

    @property
    def output_width(self) -> int:
        """Columns of the output."""
        return output_grid(self.height, self.width, self.stride)[1]

    @property
    def num_taps(self) -> int:
        """Taps of a filter."""
        return self.kernel_height * self.kernel_width

    @property
    def wraps_rows(self) -> bool:
        """Whether the grid is periodic along the height."""
        return self.padding_mode == "circular"

    @property
    def wraps_columns(self) -> bool:
        """Whether the grid is periodic along the width."""
        return self.padding_mode != "zeros"

    def tap_steps(self) -> dict[str, Any]:
        """Distance of the taps that can read an input pixel along each axis, as compile-time constants.

        It is the stride, unless an axis is periodic with a length that is no multiple of it.
        """
        is_regular_height = not self.wraps_rows or self.height % self.stride == 0
        is_regular_width = not self.wraps_columns or self.width % self.stride == 0
        return {
            "ROW_TAP_STEP": self.stride if is_regular_height else 1,
            "COLUMN_TAP_STEP": self.stride if is_regular_width else 1,
        }

    def options(self, tile: Tile) -> dict[str, Any]:
        """The compile-time constants of a kernel, and its warps and stages."""
        return {
            "KERNEL_HEIGHT": self.kernel_height,
            "KERNEL_WIDTH": self.kernel_width,
            "STRIDE": self.stride,
            "WRAPS_ROWS": self.wraps_rows,
            "WRAPS_COLUMNS": self.wraps_columns,
            "PRECISION": self.precision,
            "ROWS": tile.rows,
            "COLUMNS": tile.columns,
            "DEPTH": tile.depth,
            "num_warps": tile.num_warps,
            "num_stages": tile.num_stages,
        }
