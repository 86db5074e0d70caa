"""The routed convolution by the sparse kernels: one matrix product for each pixel, with that pixel's filters."""

from __future__ import annotations

import os

import torch

from smoe.ops._conv_kernels import output_grid
from smoe.ops._gather import fold_channels
from smoe.ops._operators import format_of
from smoe.ops.triton.problem import Problem
from smoe.ops.triton.routed_conv_forward import routed_conv_forward
from smoe.ops.triton.routed_conv_input_gradient import routed_conv_input_gradient
from smoe.ops.triton.routed_conv_weight_gradient import routed_conv_weight_gradient
from smoe.ops.triton.tiles import Direction, Tile, tile_for

WEIGHT_GRADIENT_VARIABLE = "SMOE_WEIGHT_GRADIENT"


def triton_routed_conv2d(
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    expert_channels: int,
    stride: int,
    padding_mode: str,
    *,
    tile: Tile | None = None,
) -> torch.Tensor:
    """The output by the sparse kernel, in the memory format of the input.

    Args:
        input: `(B, C, H, W)`.
        weight: `(X * F, C, kh, kw)`.
        indices: Shared routing `(1, E, P)`, int32.
        expert_channels: F.
        stride: Stride of both axes.
        padding_mode: Padding mode.
        tile: Block sizes; None for those of `tile_for`.
    """
    problem = _problem(input, weight, stride, padding_mode)
    filters = filters_by_pixel(indices, expert_channels)
    grid = output_grid(input.shape[2], input.shape[3], stride)
    if input.numel() == 0:
        output = input.new_zeros(input.shape[0], filters.shape[0], filters.shape[1])
    else:
        tile = tile or _tile("forward", filters.shape[1], input.shape[0], input.shape[1], input, problem)
        output = routed_conv_forward(pixel_rows(input), _tap_rows(weight), filters, problem, tile)
    return _grid_of(output, grid, format_of(input))


def triton_routed_conv2d_backward(
    error: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    expert_channels: int,
    stride: int,
    padding_mode: str,
    needs_input: bool,
    needs_weight: bool,
    *,
    tile: Tile | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients by the sparse kernels, each in the memory format of its tensor; one that is not needed is empty."""
    input_gradient, weight_gradient = input.new_empty(0), weight.new_empty(0)
    if error.numel() == 0 or input.numel() == 0:
        return (
            torch.zeros_like(input, memory_format=format_of(input)) if needs_input else input_gradient,
            torch.zeros_like(weight, memory_format=format_of(weight)) if needs_weight else weight_gradient,
        )
    problem = _problem(input, weight, stride, padding_mode)
    filters = filters_by_pixel(indices, expert_channels)
    signal = pixel_rows(error)
    B, C = input.shape[:2]
    if needs_input:
        chosen = tile or _tile("input_gradient", C, B, filters.shape[1], input, problem)
        rows = routed_conv_input_gradient(signal, _tap_rows(weight), filters, problem, chosen)
        input_gradient = _grid_of(rows, (problem.height, problem.width), format_of(input))
    if needs_weight:
        is_atomic = uses_atomics()
        direction: Direction = "atomic_weight_gradient" if is_atomic else "weight_gradient"
        chosen = tile or _tile(direction, weight.shape[0], C, B, input, problem)
        rows = routed_conv_weight_gradient(
            signal, pixel_rows(input), filters, weight.shape[0], problem, chosen, is_atomic=is_atomic
        )
        weight_gradient = _grid_of(rows.to(weight.dtype), (weight.shape[2], weight.shape[3]), format_of(weight))
    return input_gradient, weight_gradient


def filters_by_pixel(indices: torch.Tensor, expert_channels: int) -> torch.Tensor:
    """Filters selected at each pixel, `(P, E * F)`, from a shared routing `(1, E, P)`; an expert's F are adjacent."""
    return fold_channels(indices[0], expert_channels).T.contiguous()


def pixel_rows(values: torch.Tensor) -> torch.Tensor:
    """`(B, C, H, W)` as contiguous `(B, H * W, C)`; channels_last needs no copy."""
    return values.permute(0, 2, 3, 1).contiguous().flatten(1, 2)


def _tap_rows(weight: torch.Tensor) -> torch.Tensor:
    """`(X * F, C, kh, kw)` as contiguous `(X * F, taps, C)`."""
    return weight.permute(0, 2, 3, 1).contiguous().flatten(1, 2)


def _grid_of(rows: torch.Tensor, grid: tuple[int, int], memory_format: torch.memory_format) -> torch.Tensor:
    """`(B, P, C)` as `(B, C, *grid)` in a memory format; channels_last needs no copy."""
    result = rows.unflatten(1, grid).permute(0, 3, 1, 2).contiguous(memory_format=memory_format)
    # Dimensions of size 1 keep any stride, but compilers are promised those of a new tensor.
    promised = torch.empty(result.shape, device="meta").contiguous(memory_format=memory_format)
    return result.as_strided(result.shape, promised.stride())


def float32_precision() -> str:
    """How convolutions multiply float32 numbers, by PyTorch's own setting: `tf32` or `ieee`."""
    setting = getattr(torch.backends.cudnn, "conv", None)
    if setting is None:  # before torch 2.9
        return "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"
    return "tf32" if setting.fp32_precision == "tf32" else "ieee"


def uses_atomics() -> bool:
    """Whether the weight gradient is to be added by atomic operations: SMOE_WEIGHT_GRADIENT=atomic.

    Raises:
        RuntimeError: If PyTorch is asked for deterministic algorithms at the same time.
    """
    asked = os.environ.get(WEIGHT_GRADIENT_VARIABLE, "masked")
    if asked not in ("masked", "atomic"):
        raise ValueError(f"{WEIGHT_GRADIENT_VARIABLE} must be masked or atomic, got {asked!r}")
    if asked == "atomic" and torch.are_deterministic_algorithms_enabled():
        raise RuntimeError(
            f"{WEIGHT_GRADIENT_VARIABLE}=atomic is not deterministic, but torch.use_deterministic_algorithms(True) is "
            "set; unset the variable for the deterministic kernel"
        )
    return asked == "atomic"


def _problem(input: torch.Tensor, weight: torch.Tensor, stride: int, padding_mode: str) -> Problem:
    return Problem(
        *(input.shape[2], input.shape[3], weight.shape[2], weight.shape[3]),
        *(stride, padding_mode, float32_precision()),
    )


def _tile(direction: Direction, rows: int, columns: int, depth: int, input: torch.Tensor, problem: Problem) -> Tile:
    return tile_for(
        direction,
        rows=rows,
        columns=columns,
        depth=depth,
        bytes_each=input.element_size(),
        precision=problem.precision,
    )
