"""The routed convolution by the C++ kernels, of planes and of volumes, and which kernel serves which shape."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
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


@dataclass(frozen=True)
class NativeConvolution:
    """The routed convolution on a CPU, of planes or of volumes: the kernels where they serve, dense otherwise.

    Attributes:
        output_grid: Makes the grid of the output from the grid of the input, the sizes of the kernel, the stride and
            the padding mode.
        make_geometry: Makes the description of a problem for the kernels, from the shapes of input and weight, the
            numbers of samples and of selected experts, the stride and the padding mode.
        dense: The output for every dtype.
        dense_backward: The gradients for every dtype.
    """

    output_grid: Callable[..., tuple[int, ...]]
    make_geometry: Callable[..., Geometry]
    dense: Callable[..., torch.Tensor]
    dense_backward: Callable[..., tuple[torch.Tensor, torch.Tensor]]

    def problem(
        self,
        library: NativeLibrary,
        input: torch.Tensor,
        weight: torch.Tensor,
        indices: torch.Tensor,
        expert_channels: int,
        stride: int,
        padding_mode: str,
    ) -> Problem:
        """Describes a routed convolution with a routing `(1 or B, E, P)` for the kernels."""
        folded = fold_routing(library, indices, expert_channels)
        batch = len(input) if len(folded) == 1 else 1
        # A stride beyond the grid has one output whatever it is, but the kernels allocate by it.
        stride = min(stride, max(input.shape[2:]))
        geometry = self.make_geometry(input.shape, weight.shape, batch, folded.shape[1], stride, padding_mode)
        return Problem(library, geometry, folded)

    def forward(
        self,
        input: torch.Tensor,
        weight: torch.Tensor,
        indices: torch.Tensor,
        expert_channels: int,
        stride: int,
        padding_mode: str,
    ) -> torch.Tensor:
        """The output."""
        options = (expert_channels, stride, padding_mode)
        library = kernels_for(indices, input, weight)
        if library is None:
            return self.dense(input, weight, indices, *options)
        grid = self.output_grid(input.shape[2:], weight.shape[2:], stride, padding_mode)
        output = input.new_empty(input.shape[0], indices.shape[1] * expert_channels, *grid)
        if input.numel() == 0:
            return output.zero_()
        if output.numel():
            problem = self.problem(library, input, weight, indices, *options)
            problem.run("forward", input.contiguous(), weight.contiguous(), output)
        return output

    def backward(
        self,
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
        """Gradients of input and weight; one that is not needed is empty."""
        options = (expert_channels, stride, padding_mode)
        library = kernels_for(indices, error, input, weight)
        if library is None:
            return self.dense_backward(error, input, weight, indices, *options, needs_input, needs_weight)
        if error.numel() == 0 or input.numel() == 0:
            return (
                torch.zeros_like(input) if needs_input else input.new_empty(0),
                torch.zeros_like(weight) if needs_weight else weight.new_empty(0),
            )
        problem = self.problem(library, input, weight, indices, *options)
        return problem.gradients(error.contiguous(), input.contiguous(), weight.contiguous(), needs_input, needs_weight)


def kernels_for(indices: torch.Tensor, *tensors: torch.Tensor) -> NativeLibrary | None:
    """The kernels if they serve these tensors; None otherwise.

    Raises:
        ValueError: If the kernels would read the indices wrongly.
    """
    if indices.dtype != torch.int32 or indices.device.type != "cpu":
        raise ValueError(f"the routed convolution needs int32 indices on cpu, got {indices.dtype} on {indices.device}")
    return library_for(*tensors)


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


def plane_geometry(
    input: torch.Size, weight: torch.Size, batch: int, num_selected: int, stride: int, padding_mode: str
) -> Geometry:
    """Describes a convolution of planes: `make_geometry` of `NativeConvolution`."""
    (_, C, H, W), (kernel_height, kernel_width) = input, weight[2:]
    return Geometry(
        *(batch, C, weight[0], num_selected, H, W, *output_grid(H, W, stride)),
        *(kernel_height, kernel_width, stride),
        *(int(padding_mode == "circular"), int(padding_mode != "zeros"), num_threads().value),
        *(1, 1, 1, 0),  # a plane is a volume of one slice
        *(0, kernel_height // 2, kernel_width // 2),
    )


def _plane_grid(sizes: torch.Size, kernel: torch.Size, stride: int, padding_mode: str) -> tuple[int, ...]:
    del kernel, padding_mode  # the padding is that which keeps the grid
    return output_grid(sizes[0], sizes[1], stride)


PLANES = NativeConvolution(_plane_grid, plane_geometry, dense_routed_conv2d, dense_routed_conv2d_backward)
