"""The routed convolution by the C++ kernels, and which kernel serves which shape."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch

from smoe.ops.native.library import Geometry, NativeLibrary, library_for, num_threads
from smoe.ops.padding import output_grid
from smoe.ops.routed_conv.dense import dense_routed_conv2d, dense_routed_conv2d_backward

Direction = str  # "forward", "input_gradient" or "weight_gradient"

# A family of kernels by what lies in its vector lanes.
PIXEL, LIST, BATCH = "smoe_pixel", "smoe_list", "smoe_batch"


@dataclass(frozen=True)
class Problem:
    """A routed convolution with its arguments checked, contiguous and folded: an expert's F outputs are F experts.

    `indices` are `(S, E * F, P)`; where each sample has a routing of its own, the geometry is that of one sample.
    """

    library: NativeLibrary
    geometry: Geometry
    indices: torch.Tensor

    def family(self, direction: Direction) -> str:
        """The fastest family for the shape. It depends on the shape only, so that a run can be repeated bit by bit."""
        geometry = self.geometry
        taps = geometry.kernel_height * geometry.kernel_width
        if taps * geometry.channels * geometry.selected <= (64 if geometry.batch < 4 else 96):
            return PIXEL
        # In a bank with filters for each pixel, the list of pixels of an expert is too short.
        has_lists = geometry.experts <= 8192
        smallest_batch = {"forward": 7, "input_gradient": 12, "weight_gradient": 6}[direction]
        return LIST if has_lists and (geometry.selected < 4 or geometry.batch < smallest_batch) else BATCH

    def run(self, direction: Direction, first: torch.Tensor, second: torch.Tensor, result: torch.Tensor) -> None:
        """Fills `result`; the weight gradient, where samples have routings of their own, for each of them."""
        name, geometry = f"{self.family(direction)}_{direction}", ctypes.byref(self.geometry)
        if len(self.indices) == 1:
            self.library.call(name, geometry, first, second, self.indices, result)
            return
        for sample, routing in enumerate(self.indices):
            # All samples share the weights, which stand second but for their own gradient.
            operand = second[sample] if direction == "weight_gradient" else second
            self.library.call(name, geometry, first[sample], operand, routing, result[sample])

    def gradients(
        self, error: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, needs_input: bool, needs_weight: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Gradients of input and weight, all contiguous; one that is not needed is empty."""
        input_gradient = torch.empty_like(input) if needs_input else input.new_empty(0)
        weight_gradient = weight.new_empty(0)
        if needs_input:
            self.run("input_gradient", error, weight, input_gradient)
        if needs_weight and len(self.indices) == 1:
            weight_gradient = torch.empty_like(weight)
            self.run("weight_gradient", input, error, weight_gradient)
        elif needs_weight:
            sample_gradients = weight.new_empty(input.shape[0], *weight.shape)
            self.run("weight_gradient", input, error, sample_gradients)
            weight_gradient = sample_gradients.sum(dim=0)
        return input_gradient, weight_gradient


def make_problem(
    library: NativeLibrary,
    input_shape: torch.Size,
    weight: torch.Tensor,
    indices: torch.Tensor,
    expert_channels: int,
    stride: int,
    padding_mode: str,
) -> Problem:
    """Describes a routed convolution of a plane, with a routing `(1 or B, E, P)`, for the kernels."""
    B, C, H, W = input_shape
    folded = fold_routing(library, indices, expert_channels)
    kernel_height, kernel_width = weight.shape[2:]
    geometry = Geometry(
        *(B if len(folded) == 1 else 1, C, weight.shape[0], folded.shape[1], H, W, *output_grid(H, W, stride)),
        *(kernel_height, kernel_width, stride),
        *(int(padding_mode == "circular"), int(padding_mode != "zeros"), num_threads().value),
        *(1, 1, 1, 0),  # a plane is a volume of one slice
        *(0, kernel_height // 2, kernel_width // 2),
    )
    return Problem(library, geometry, folded)


def kernels_for(input: torch.Tensor, weight: torch.Tensor, indices: torch.Tensor) -> NativeLibrary | None:
    """The kernels if they serve these tensors; None otherwise.

    Raises:
        ValueError: If the kernels would read the indices wrongly.
    """
    if indices.dtype != torch.int32 or indices.device.type != "cpu":
        raise ValueError(f"smoe::routed_conv2d needs int32 indices on cpu, got {indices.dtype} on {indices.device}")
    return library_for(input, weight)


def fold_routing(library: NativeLibrary, indices: torch.Tensor, expert_channels: int) -> torch.Tensor:
    """The routing with an expert's F outputs as F experts, `(S, E * F, P)`."""
    indices = indices.contiguous()
    if expert_channels == 1:
        return indices
    num_samples, num_selected, num_pixels = indices.shape
    folded = indices.new_empty(num_samples, num_selected * expert_channels, num_pixels)
    # An expert's outputs are adjacent, so that the experts of several samples are folded like those of one.
    sizes = (num_samples * num_selected, num_pixels, expert_channels)
    library.call("smoe_fold_routing", indices, *(ctypes.c_int64(size) for size in sizes), folded)
    return folded


def native_routed_conv2d(
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    expert_channels: int,
    stride: int,
    padding_mode: str,
) -> torch.Tensor:
    """The output on a CPU; `dense_routed_conv2d` where there is no kernel."""
    library = kernels_for(input, weight, indices)
    if library is None:
        return dense_routed_conv2d(input, weight, indices, expert_channels, stride, padding_mode)
    grid = output_grid(input.shape[2], input.shape[3], stride)
    output = input.new_empty(input.shape[0], indices.shape[1] * expert_channels, *grid)
    if input.numel() == 0:
        return output.zero_()
    if output.numel():
        problem = make_problem(library, input.shape, weight, indices, expert_channels, stride, padding_mode)
        problem.run("forward", input.contiguous(), weight.contiguous(), output)
    return output


def native_routed_conv2d_backward(
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
    library = kernels_for(input, weight, indices) if error.dtype == torch.float32 else None
    if library is None:
        options = (expert_channels, stride, padding_mode, needs_input, needs_weight)
        return dense_routed_conv2d_backward(error, input, weight, indices, *options)
    if error.numel() == 0 or input.numel() == 0:
        return (
            torch.zeros_like(input) if needs_input else input.new_empty(0),
            torch.zeros_like(weight) if needs_weight else weight.new_empty(0),
        )
    problem = make_problem(library, input.shape, weight, indices, expert_channels, stride, padding_mode)
    return problem.gradients(error.contiguous(), input.contiguous(), weight.contiguous(), needs_input, needs_weight)
