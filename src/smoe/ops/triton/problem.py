"""What the kernels of the routed convolution have in common: the grid, the border and the precision of a problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from smoe.ops._conv_kernels import output_grid
from smoe.ops.triton.tiles import Tile
from smoe.ops.triton.window import Window


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

    @property
    def window(self) -> Window:
        """Window of a filter, for the compiler."""
        # The distance of the taps that read an input pixel is the stride, unless an axis is periodic with a length that
        # is not a multiple of it.
        is_regular_height = not self.wraps_rows or self.height % self.stride == 0
        is_regular_width = not self.wraps_columns or self.width % self.stride == 0
        return Window(
            *(self.kernel_height, self.kernel_width, self.stride, self.wraps_rows, self.wraps_columns),
            row_tap_step=self.stride if is_regular_height else 1,
            column_tap_step=self.stride if is_regular_width else 1,
        )

    def options(self, tile: Tile) -> dict[str, Any]:
        """The compile-time constants of a kernel, and its warps and stages."""
        return {
            "WINDOW": self.window,
            "PRECISION": self.precision,
            "ROWS": tile.rows,
            "COLUMNS": tile.columns,
            "DEPTH": tile.depth,
            "num_warps": tile.num_warps,
            "num_stages": tile.num_stages,
        }
