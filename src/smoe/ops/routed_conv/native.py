"""The routed convolution by the C++ kernels: which kernel serves which shape."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass

import torch

from smoe.ops.native.library import Geometry, NativeLibrary, has_library, native_library
from smoe.options import PaddingMode

Direction = str  # "forward", "input_gradient" or "weight_gradient"

# A family of kernels by what lies in its vector lanes.
PIXEL, LIST, BATCH = "smoe_pixel", "smoe_list", "smoe_batch"


@dataclass(frozen=True)
class Problem:
    """A routed convolution with its arguments checked, contiguous and folded: an expert's F outputs are F experts.

    Where each sample has a routing of its own, `indices` is `(B, E * F, H', W')` and the geometry that of one sample.
    """

    library: NativeLibrary
    geometry: Geometry
    indices: torch.Tensor

    def family(self, direction: Direction) -> str:
        """The fastest family for the shape. Nothing else decides, so that a run can be repeated bit by bit."""
        geometry = self.geometry
        taps = geometry.kernel_height * geometry.kernel_width
        if taps * geometry.channels * geometry.selected <= (64 if geometry.batch < 4 else 96):
            return PIXEL
        # A bank with filters for every pixel has no lists worth the name.
        has_lists = geometry.experts <= 8192
        smallest_batch = {"forward": 7, "input_gradient": 12, "weight_gradient": 6}[direction]
        return LIST if has_lists and (geometry.selected < 4 or geometry.batch < smallest_batch) else BATCH

    def run(self, direction: Direction, first: torch.Tensor, second: torch.Tensor, result: torch.Tensor) -> None:
        """Fills `result`; the weight gradient, where samples have routings of their own, for each of them."""
        name, geometry = f"{self.family(direction)}_{direction}", ctypes.byref(self.geometry)
        if self.indices.ndim == 3:
            self.library.call(name, geometry, first, second, self.indices, result)
            return
        for sample, routing in enumerate(self.indices):
            # All samples share the weights, which stand second but for their own gradient.
            operand = second[sample] if direction == "weight_gradient" else second
            self.library.call(name, geometry, first[sample], operand, routing, result[sample])


def is_supported(input: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether the kernels can do it: float32 on a CPU, with the library there."""
    return (
        input.device.type == weight.device.type == "cpu"
        and input.dtype == weight.dtype == torch.float32
        and has_library()
    )


def make_problem(
    input_shape: torch.Size,
    weight: torch.Tensor,
    indices: torch.Tensor,
    expert_channels: int,
    stride: int,
    padding_mode: PaddingMode,
) -> Problem:
    """Describes the problem to the kernels, for a routing `(E, H', W')` or, sample by sample, `(B, E, H', W')`."""
    library = native_library()
    assert library is not None
    B, C, H, W = input_shape
    folded = _fold(library, indices.contiguous(), expert_channels)
    geometry = Geometry(
        *(B if folded.ndim == 3 else 1, C, weight.shape[0], folded.shape[-3], H, W, *folded.shape[-2:]),
        *(weight.shape[2], weight.shape[3], stride),
        *(int(padding_mode == "circular"), int(padding_mode != "zeros"), torch.get_num_threads()),
    )
    return Problem(library, geometry, folded)


def _fold(library: NativeLibrary, indices: torch.Tensor, expert_channels: int) -> torch.Tensor:
    """The routing `(..., E, H', W')` as the kernels want it, int32 `(..., E * F, H', W')`: often the tensor itself."""
    if indices.dtype == torch.int32 and expert_channels == 1:
        return indices
    *samples, selected, height, width = indices.shape
    folded = indices.new_empty(*samples, selected * expert_channels, height, width, dtype=torch.int32)
    name = "smoe_fold_int32" if indices.dtype == torch.int32 else "smoe_fold_int64"
    # An expert's outputs lie behind each other, so that the experts of several samples are folded like those of one.
    sizes = (math.prod(samples) * selected, height * width, expert_channels)
    library.call(name, indices, *(ctypes.c_int64(size) for size in sizes), folded)
    return folded


def native_forward(
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    expert_channels: int,
    stride: int,
    padding_mode: PaddingMode,
) -> torch.Tensor:
    """Output `(B, E * F, H', W')`, for a routing `(E, H', W')` or, sample by sample, `(B, E, H', W')`."""
    if input.shape[0] == 0:
        return input.new_empty(0, indices.shape[-3] * expert_channels, *indices.shape[-2:])
    problem = make_problem(input.shape, weight, indices, expert_channels, stride, padding_mode)
    output = input.new_empty(input.shape[0], indices.shape[-3] * expert_channels, *indices.shape[-2:])
    problem.run("forward", input.contiguous(), weight.contiguous(), output)
    return output


def native_backward(
    error: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    expert_channels: int,
    stride: int,
    padding_mode: PaddingMode,
    needs: tuple[bool, bool],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of input and weight; one that is not needed is empty."""
    if input.shape[0] == 0:
        return torch.zeros_like(input), torch.zeros_like(weight)
    error, input, weight = error.contiguous(), input.contiguous(), weight.contiguous()
    problem = make_problem(input.shape, weight, indices, expert_channels, stride, padding_mode)
    input_gradient = torch.empty_like(input) if needs[0] else input.new_empty(0)
    weight_gradient = weight.new_empty(0)
    if needs[0]:
        problem.run("input_gradient", error, weight, input_gradient)
    if needs[1] and indices.ndim == 3:
        weight_gradient = torch.empty_like(weight)
        problem.run("weight_gradient", input, error, weight_gradient)
    elif needs[1]:
        sample_gradients = weight.new_empty(input.shape[0], *weight.shape)
        problem.run("weight_gradient", input, error, sample_gradients)
        weight_gradient = sample_gradients.sum(dim=0)
    return input_gradient, weight_gradient
