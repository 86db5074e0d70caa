"""The routed convolution of a volume by the kernels of the plane, which see its slices as one tall image."""

from __future__ import annotations

import torch

from smoe.ops.native.library import Geometry, NativeLibrary, library_for, num_threads
from smoe.ops.routed_conv.native import Problem, fold_routing
from smoe.ops.routed_conv3d.dense import dense_routed_conv3d, dense_routed_conv3d_backward
from smoe.ops.routed_conv3d.grid import volume_grid, volume_padding


def make_volume_problem(
    library: NativeLibrary,
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    expert_channels: int,
    stride: int,
    padding_mode: str,
) -> Problem:
    """Describes a routed convolution of a volume, with a routing `(1 or B, E, P)`, for the kernels."""
    B, C, D, H, W = input.shape
    kernel_depth, kernel_height, kernel_width = weight.shape[2:]
    output_depth, output_height, output_width = volume_grid(input.shape[2:], weight.shape[2:], stride, padding_mode)
    folded = fold_routing(library, indices, expert_channels)
    wraps = int(padding_mode == "circular")
    geometry = Geometry(
        *(B if len(folded) == 1 else 1, C, weight.shape[0], folded.shape[1]),
        *(D * H, W, output_depth * output_height, output_width),
        *(kernel_depth * kernel_height, kernel_width, stride, wraps, wraps, num_threads().value),
        *(D, output_depth, kernel_depth, wraps),
        *volume_padding(weight.shape[2:], padding_mode),
    )
    return Problem(library, geometry, folded)


def native_routed_conv3d(
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    expert_channels: int,
    stride: int,
    padding_mode: str,
) -> torch.Tensor:
    """The output on a CPU; `dense_routed_conv3d` where there is no kernel."""
    library = library_for(input, weight)
    if library is None:
        return dense_routed_conv3d(input, weight, indices, expert_channels, stride, padding_mode)
    grid = volume_grid(input.shape[2:], weight.shape[2:], stride, padding_mode)
    output = input.new_empty(input.shape[0], indices.shape[1] * expert_channels, *grid)
    if input.numel() == 0:
        return output.zero_()
    if output.numel():
        problem = make_volume_problem(library, input, weight, indices, expert_channels, stride, padding_mode)
        problem.run("forward", input.contiguous(), weight.contiguous(), output)
    return output


def native_routed_conv3d_backward(
    error: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    expert_channels: int,
    stride: int,
    padding_mode: str,
    needs_input: bool,
    needs_weight: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of input and weight on a CPU; one that is not needed is empty."""
    library = library_for(error, input, weight)
    if library is None:
        options = (expert_channels, stride, padding_mode, needs_input, needs_weight)
        return dense_routed_conv3d_backward(error, input, weight, indices, *options)
    if error.numel() == 0 or input.numel() == 0:
        return (
            torch.zeros_like(input) if needs_input else input.new_empty(0),
            torch.zeros_like(weight) if needs_weight else weight.new_empty(0),
        )
    problem = make_volume_problem(library, input, weight, indices, expert_channels, stride, padding_mode)
    return problem.gradients(error.contiguous(), input.contiguous(), weight.contiguous(), needs_input, needs_weight)
