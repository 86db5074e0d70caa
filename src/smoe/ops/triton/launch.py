"""Launches kernels on the device of a tensor, or records the launches for a compilation ahead of time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch


class Launch(NamedTuple):
    """One launch of a kernel.

    Attributes:
        kernel: Function that `triton.jit` decorates.
        grid: Number of programs along each axis.
        arguments: Tensors and numbers.
        options: Compile-time constants, and the warps and stages.
    """

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    options: dict[str, Any]


# Programs along the second and third axis of a grid, by CUDA; the first axis has room for 2^31 - 1.
MAX_PROGRAMS_ACROSS = 65_535

_recorded: list[Launch] | None = None


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    """Runs `kernel` on the device of its first argument; on a CPU, Triton's interpreter runs it.

    Multiplications and additions are fused unless `enable_fp_fusion=False` is given, whatever a version of Triton does
    by default.
    """
    if max(grid[1:], default=1) > MAX_PROGRAMS_ACROSS or grid[0] >= 2**31:
        raise ValueError(f"{kernel.__name__} has a grid of {grid}, larger than CUDA allows")
    options = {"enable_fp_fusion": True, **options}
    if _recorded is not None:
        _recorded.append(Launch(kernel, grid, arguments, options))
        return
    first: torch.Tensor = arguments[0]
    with torch.cuda.device(first.device) if first.is_cuda else contextlib.nullcontext():
        kernel[grid](*arguments, **options)


@contextlib.contextmanager
def record_launches() -> Iterator[list[Launch]]:
    """Collects the launches inside the context instead of running them; tensors may be on the meta device."""
    global _recorded
    before, _recorded = _recorded, []
    try:
        yield _recorded
    finally:
        _recorded = before


def ceil_div(size: int, block: int) -> int:
    """Number of blocks that cover `size` elements."""
    return -(-size // block)


def power_of_two(size: int) -> int:
    """The smallest power of two that is at least `size`: what the sides of a block must be."""
    return 1 << max(size - 1, 0).bit_length()
