"""Which routed convolutions the sparse Triton kernels compute on a GPU, and with which blocks. Imports no Triton."""

from __future__ import annotations

import functools
import importlib.util
import os
from dataclasses import dataclass
from typing import Literal

import torch

# Tensor cores with bfloat16 and TF32, and asynchronous copies, came with compute capability 8.0 (Ampere).
MIN_CAPABILITY = (8, 0)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)

# Offsets in the kernels are 32-bit integers, and the last block of a tensor reaches beyond its end.
MAX_ELEMENTS = 2**31 - 2**16

# The oldest Triton that the kernels were compiled with.
MIN_TRITON = (3, 4)

# A block of the matrix product has at least 16 rows, columns and depth: below these sizes most of it is padding, and
# more than that for the weight gradient.
MIN_CHANNELS = 32
MIN_SELECTED_CHANNELS = 32
MIN_BATCH = 24


@dataclass(frozen=True)
class RoutedShape:
    """Sizes that decide how a routed convolution is computed: B, C, X, E, F, filter, input grid and P."""

    batch: int
    channels: int
    num_experts: int
    num_selected: int
    expert_channels: int
    kernel: tuple[int, int]
    grid: tuple[int, int]
    output_pixels: int
    is_shared: bool = True

    @property
    def largest_tensor(self) -> int:
        """Elements of the largest tensor that the kernels read or write."""
        filters, selected = self.num_experts * self.expert_channels, self.num_selected * self.expert_channels
        padded_batch = -(-self.batch // 16) * 16
        return max(
            self.batch * self.channels * self.grid[0] * self.grid[1],
            padded_batch * selected * self.output_pixels,
            filters * self.channels * self.kernel[0] * self.kernel[1],
            filters * self.output_pixels,
        )


@functools.cache
def why_no_triton() -> str | None:
    """Why the Triton kernels cannot run in this process, or None."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed; PyTorch's builds for CUDA come with it"
    if torch.version.hip is not None:
        return "the kernels were compiled and proven for NVIDIA GPUs only, and this PyTorch is built for AMD"
    if torch.version.cuda is None:
        return f"this PyTorch ({torch.__version__}) is built without CUDA"
    if not torch.cuda.is_available():
        return "PyTorch finds no CUDA device or driver"
    if os.environ.get("SMOE_BACKEND") != "triton":
        return "nobody has measured them on a GPU yet, so they are off: set SMOE_BACKEND=triton to use them"
    return why_too_old(importlib.import_module("triton").__version__)


def why_too_old(version: str) -> str | None:
    """Why a version of Triton does not serve, or None."""
    numbers = tuple(int(number) for number in version.split(".")[:2])
    wanted = ".".join(map(str, MIN_TRITON))
    return f"Triton {version} is older than {wanted}; update PyTorch" if numbers < MIN_TRITON else None


@functools.cache
def why_not_on(device_index: int) -> str | None:
    """Why the kernels cannot run on a CUDA device, or None."""
    capability = torch.cuda.get_device_capability(device_index)
    if capability < MIN_CAPABILITY:
        return f"compute capability {capability[0]}.{capability[1]} is below {MIN_CAPABILITY[0]}.{MIN_CAPABILITY[1]}"
    return None


def why_not_sparse(
    input: torch.Tensor, weight: torch.Tensor, indices: torch.Tensor, expert_channels: int
) -> str | None:
    """Why planes on a GPU are computed densely, or None if the sparse kernels are chosen."""
    reason = why_no_triton()
    if reason is not None:
        return reason
    if input.dtype not in DTYPES:
        return f"no kernel for {input.dtype}"
    if input.dtype != weight.dtype or indices.dtype != torch.int32:
        return f"input, weight and indices are {input.dtype}, {weight.dtype} and {indices.dtype}"
    # Elements from the first of a tensor to its last in memory: more than it has, if it is a part of another.
    for tensor in (input, weight, indices):
        extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        if extent >= MAX_ELEMENTS:
            return f"a tensor has {extent} elements, more than 32-bit offsets reach"
    shape = RoutedShape(
        batch=input.shape[0],
        channels=weight.shape[1],
        num_experts=weight.shape[0] // expert_channels,
        num_selected=indices.shape[1],
        expert_channels=expert_channels,
        kernel=(weight.shape[2], weight.shape[3]),
        grid=(input.shape[2], input.shape[3]),
        output_pixels=indices.shape[2],
        is_shared=indices.shape[0] == 1,
    )
    return why_not_on(input.device.index) or why_dense(shape)


def why_dense(shape: RoutedShape) -> str | None:
    """Why a routed convolution of this shape is computed densely, or None if the sparse kernels are chosen.

    Only the shape decides, so that a run can be repeated bit by bit.
    """
    selected = shape.num_selected * shape.expert_channels
    if not shape.is_shared:
        return "each sample has its own routing, so that no filters are shared by the batch"
    if shape.largest_tensor >= MAX_ELEMENTS:
        return f"a tensor has {shape.largest_tensor} elements, more than 32-bit offsets reach"
    if shape.channels < MIN_CHANNELS:
        return f"C = {shape.channels} is below {MIN_CHANNELS}"
    if selected < MIN_SELECTED_CHANNELS:
        return f"E * F = {selected} is below {MIN_SELECTED_CHANNELS}"
    return f"B = {shape.batch} is below {MIN_BATCH}" if shape.batch < MIN_BATCH else None


Direction = Literal["forward", "input_gradient", "weight_gradient"]

# How float32 products are computed: on tensor cores with 10 bits of mantissa, or exactly on the other units. For
# half-precision operands it has no meaning.
Precision = Literal["tf32", "ieee"]


@dataclass(frozen=True)
class Tile:
    """Block sizes of a matrix product on the GPU."""

    rows: int
    columns: int
    depth: int
    num_warps: int
    num_stages: int

    @property
    def name(self) -> str:
        """The block sizes as `rows x columns x depth`."""
        return f"{self.rows}x{self.columns}x{self.depth}"


# Products without tensor cores, for exact float32: each thread holds its part of both operands in registers.
_EXACT = Tile(32, 32, 16, num_warps=4, num_stages=2)

# Blocks along each side. There are always more filters in the bank than the smallest number of selected ones.
_ROWS = (32, 64, 128)
_BANK_ROWS = (64, 128)
_SAMPLES = (32, 64, 128)
_CHANNELS = (32, 64, 128)


def tile_for(direction: Direction, *, rows: int, columns: int, depth: int, bytes_each: int, precision: str) -> Tile:
    """The tile for a product of `rows x columns` with sums over `depth` elements."""
    if bytes_each == 4 and precision == "ieee":
        return _EXACT
    # Warps and stages are those with which the compiler spills no register (paper/results/gpu). The gradients load
    # filter or slot numbers inside their loops, and this indirection costs two stages.
    if direction == "weight_gradient":
        row_block, column_block = _block(rows, _BANK_ROWS), _block(columns, _CHANNELS)
        num_sums = row_block * column_block
        is_large = num_sums > 128 * 64 or (row_block, column_block) == (128, 64)
        depth_block = 16 if bytes_each == 4 and is_large else 32
        return Tile(row_block, column_block, depth_block, 8 if num_sums >= 128 * 32 else 4, 5)
    row_block, column_block = _block(rows, _ROWS), _block(columns, _SAMPLES)
    # A step loads as many bytes for every dtype.
    depth_block = _block(depth, (32, 64)) * 2 // bytes_each
    is_large = row_block * column_block > 128 * 64
    if direction == "forward":
        return Tile(row_block, column_block, depth_block, 8 if is_large else 4, 3)
    is_flat = (row_block, column_block) == (128, 32)
    if bytes_each == 4 and row_block == 128 and not is_large:
        depth_block = 16
    return Tile(row_block, column_block, depth_block, 8 if is_large or is_flat else 4, 5)


def tiles_of(direction: Direction, *, bytes_each: int, precision: str) -> list[Tile]:
    """Every tile that `tile_for` can return for a dtype, for the compilation ahead of time."""
    found = {
        tile_for(direction, rows=rows, columns=columns, depth=depth, bytes_each=bytes_each, precision=precision)
        for rows in _ROWS
        for columns in _SAMPLES
        for depth in (32, 64)
    }
    return sorted(found, key=lambda tile: (-tile.rows, -tile.columns, -tile.depth))


def _block(size: int, blocks: tuple[int, ...]) -> int:
    """The smallest block that holds `size`, or the largest block."""
    return next((block for block in blocks if size <= block), blocks[-1])
