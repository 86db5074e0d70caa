"""The CPU kernels of routed convolutions: borders, checks of the choices, calls, and plans that are kept."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F

from smoe.ops._gather import gather_experts, scatter_experts
from smoe.ops._operators import (
    Geometry,
    NativeLibrary,
    call_operator,
    format_of,
    library_for,
    native_library,
    num_threads,
    register_operator,
)
from smoe.options import PADDING_MODES, PaddingMode


def output_grid(height: int, width: int, stride: int) -> tuple[int, int]:
    """Rows and columns of the output of a convolution that keeps its grid at stride 1."""
    return (height - 1) // stride + 1, (width - 1) // stride + 1


def wrap_padding(
    input: torch.Tensor, kernel_size: tuple[int, int], padding_mode: PaddingMode
) -> tuple[torch.Tensor, tuple[int, int]]:
    """Pads the axes that wrap, and returns the number of zeros that remain to be added.

    The zeros are left to the convolution, which adds them without a copy of the input.

    Args:
        input: `(B, C, H, W)`.
        kernel_size: Rows and columns of the kernel, both odd.
        padding_mode: `zeros`; `circular` wraps both axes; `longitude` wraps the width and leaves zeros on the height.

    Returns:
        The input with its wrapped borders, and the zeros to add on each side of the height and of the width.
    """
    (rows, columns), zeros = _split_border(kernel_size, padding_mode)
    return (_wrap(input, rows, columns) if rows or columns else input), zeros


def unwrap_padding(
    gradient: torch.Tensor, grid: tuple[int, int], kernel_size: tuple[int, int], padding_mode: PaddingMode
) -> torch.Tensor:
    """The transpose of `wrap_padding`: adds the gradient of each wrapped border to the pixels that it copies.

    Args:
        gradient: Gradient at the padded input, `(B, C, *padded grid)`.
        grid: Rows and columns of the input.
        kernel_size: Rows and columns of the kernel, both odd.
        padding_mode: Padding mode.

    Returns:
        `(B, C, *grid)`.
    """
    (rows, columns), _ = _split_border(kernel_size, padding_mode)
    return _unwrap_axis(_unwrap_axis(gradient, 2, grid[0], rows), 3, grid[1], columns)


def _split_border(kernel_size: tuple[int, int], padding_mode: PaddingMode) -> tuple[tuple[int, int], tuple[int, int]]:
    """Rows and columns of the border that wraps, and of the border of zeros."""
    rows, columns = kernel_size[0] // 2, kernel_size[1] // 2
    if padding_mode == "zeros":
        return (0, 0), (rows, columns)
    if padding_mode == "longitude":
        return (0, columns), (rows, 0)
    if padding_mode == "circular":
        return (rows, columns), (0, 0)
    raise ValueError(f"padding_mode must be one of {', '.join(PADDING_MODES)}, got {padding_mode!r}")


def _unwrap_axis(gradient: torch.Tensor, dim: int, size: int, border: int) -> torch.Tensor:
    if border == 0:
        return gradient
    total = gradient.narrow(dim, border, size).clone()
    # The border holds whole and partial copies of the axis: copy k begins at border + k * size.
    for copy in range(-(-border // size), 0, -1):
        begin = max(border - copy * size, 0)
        length = border - (copy - 1) * size - begin
        total.narrow(dim, size - length, length).add_(gradient.narrow(dim, begin, length))
        begin = border + copy * size
        length = min(begin + size, size + 2 * border) - begin
        total.narrow(dim, 0, length).add_(gradient.narrow(dim, begin, length))
    return total


def _wrap(input: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    height, width = input.shape[-2:]
    if rows <= height and columns <= width:
        return F.pad(input, (columns, columns, rows, rows), mode="circular")
    # F.pad wraps at most once around; a kernel wider than the grid goes round several times.
    row_index = torch.arange(-rows, height + rows, device=input.device) % height
    column_index = torch.arange(-columns, width + columns, device=input.device) % width
    return input[:, :, row_index[:, None], column_index]


def check_choices(indices: torch.Tensor, num_experts: int, width: int) -> None:
    """Raises an error for a routing that the kernels cannot take.

    Args:
        indices: Selected experts `(S, E, P)`, integers on a CPU.
        num_experts: X.
        width: Columns of the grid, for the place in the message.

    Raises:
        ValueError: If an expert is out of range or selected twice at a pixel. The message gives the place.
    """
    for sample, routing in enumerate(indices):
        problem = _find_problem(routing, num_experts)
        if problem is None:
            continue
        kind, slot, pixel, expert = problem
        where = f"slot {slot}, row {pixel // width}, column {pixel % width}"
        where = f"sample {sample}, {where}" if len(indices) > 1 else where
        if kind == 1:
            raise ValueError(
                f"indices must be in [0, {num_experts - 1}] for {num_experts} experts, got {expert} at {where}"
            )
        raise ValueError(
            f"indices must name each expert at most once at a pixel, but expert {expert} comes again at {where}"
        )


def assert_in_range(indices: torch.Tensor, num_experts: int) -> None:
    """As `check_choices`, of the range only, on the device: the host does not wait for the answer.

    An error ends the next operation that waits for the device, as errors of a GPU do.
    """
    is_inside = (indices >= 0) & (indices < num_experts)
    torch._assert_async(is_inside.all(), f"indices must be in [0, {num_experts - 1}] for {num_experts} experts")


def _find_problem(routing: torch.Tensor, num_experts: int) -> tuple[int, ...] | None:
    library = native_library()
    if library is None or routing.dtype != torch.int32:
        return _find_problem_by_sorting(routing, num_experts)
    problem = torch.zeros(4, dtype=torch.int64)
    sizes = (*routing.shape, num_experts)
    library.call("smoe_check_routing", routing.contiguous(), *sizes, problem)
    return tuple(problem.tolist()) if problem[0] else None


def _find_problem_by_sorting(routing: torch.Tensor, num_experts: int) -> tuple[int, ...] | None:
    outside = ((routing < 0) | (routing >= num_experts)).nonzero()
    if len(outside):
        slot, pixel = outside[0].tolist()
        return 1, slot, pixel, int(routing[slot, pixel])
    ranked, slots = routing.sort(dim=0, stable=True)
    repeated = (ranked[1:] == ranked[:-1]).nonzero()
    if len(repeated):
        rank, pixel = repeated[0].tolist()
        return 2, int(slots[rank + 1, pixel]), pixel, int(ranked[rank, pixel])
    return None


class Implementation(NamedTuple):
    """Both directions of a routed convolution, of planes or of volumes.

    Attributes:
        forward: As the operator `smoe::routed_conv2d` or `smoe::routed_conv3d`.
        backward: As the operator of its gradients.
    """

    forward: Callable[..., torch.Tensor]
    backward: Callable[..., tuple[torch.Tensor, torch.Tensor]]


def register_convolution(
    name: str, *, dense: Implementation, native: Implementation, cuda: Implementation, fake: Implementation
) -> Callable[..., torch.Tensor]:
    """Registers a routed convolution and its gradients, which can be differentiated any number of times.

    The convolution is linear in its input and in its weight, so the derivatives of its gradients are such convolutions
    and gradients again: the same kernels compute them.

    Args:
        name: Name of the operator.
        dense: Implementation for every device and dtype.
        native: Implementation for the CPU.
        cuda: Implementation for CUDA.
        fake: Shapes, dtypes and strides of the results.

    Returns:
        The operator of the convolution.
    """
    options = "int expert_channels, int stride, str padding_mode"

    def keep(ctx, inputs, output):
        del output
        input, weight, indices, *ctx.options = inputs
        ctx.save_for_backward(input, weight, indices)

    def gradients(ctx, error):
        needs = ctx.needs_input_grad[:2]
        found = call_operator(backward, error, *ctx.saved_tensors, *ctx.options, *needs)
        return *(part if is_needed else None for part, is_needed in zip(found, needs, strict=True)), *(None,) * 4

    def keep_for_second(ctx, inputs, output):
        del output
        error, input, weight, indices, *ctx.options, _, _ = inputs
        ctx.save_for_backward(error, input, weight, indices)
        ctx.set_materialize_grads(False)

    def second_gradients(ctx, of_input: torch.Tensor | None, of_weight: torch.Tensor | None):
        error, input, weight, indices = ctx.saved_tensors
        needs_error, needs_input, needs_weight = ctx.needs_input_grad[:3]
        by_error = by_input = by_weight = None
        if needs_error and of_input is not None:
            by_error = call_operator(forward, of_input, weight, indices, *ctx.options)
        if needs_error and of_weight is not None:
            part = call_operator(forward, input, of_weight, indices, *ctx.options)
            by_error = part if by_error is None else by_error + part
        if needs_input and of_weight is not None:
            by_input, _ = call_operator(backward, error, input, of_weight, indices, *ctx.options, True, False)
        if needs_weight and of_input is not None:
            _, by_weight = call_operator(backward, error, of_input, weight, indices, *ctx.options, False, True)
        return by_error, by_input, by_weight, *(None,) * 6

    backward: Callable[..., Any] = register_operator(
        f"{name}_backward(Tensor error, Tensor input, Tensor weight, Tensor indices, {options}, bool needs_input, "
        "bool needs_weight) -> (Tensor, Tensor)",
        dense=dense.backward,
        native=native.backward,
        cuda=cuda.backward,
        fake=fake.backward,
        gradients=second_gradients,
        setup_context=keep_for_second,
    )
    forward: Callable[..., Any] = register_operator(
        f"{name}(Tensor input, Tensor weight, Tensor indices, {options}) -> Tensor",
        dense=dense.forward,
        native=native.forward,
        cuda=cuda.forward,
        fake=fake.forward,
        gradients=gradients,
        setup_context=keep,
    )
    return forward


def dense_routed_conv2d(
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    expert_channels: int = 1,
    stride: int = 1,
    padding_mode: str = "zeros",
    *,
    gather: Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor] = gather_experts,
) -> torch.Tensor:
    """Arguments and result as `smoe.ops.routed_conv2d`; cost and memory follow the whole bank X, not E.

    `gather` is an implementation of `gather_experts`.
    """
    if 0 in input.shape[1:]:
        # torch's convolution refuses these sizes; a sum over no channels is zero.
        grid = output_grid(input.shape[2], input.shape[3], stride)
        return input.new_zeros(input.shape[0], indices.shape[1] * expert_channels, *grid)
    padded, zeros = wrap_padding(input, (weight.shape[2], weight.shape[3]), cast(PaddingMode, padding_mode))
    outputs = F.conv2d(padded, weight, stride=stride, padding=zeros)
    return gather(outputs, indices, expert_channels).contiguous(memory_format=format_of(input))


def dense_routed_conv2d_backward(
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
    scatter: Callable[[torch.Tensor, torch.Tensor, int, int], torch.Tensor] = scatter_experts,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of input and weight, each in the memory format of its tensor; one that is not needed is empty.

    `scatter` is an implementation of `scatter_experts`.
    """
    everywhere = scatter(error, indices, weight.shape[0] // expert_channels, expert_channels)
    kernel_size, mode = (weight.shape[2], weight.shape[3]), cast(PaddingMode, padding_mode)
    padded, zeros = wrap_padding(input, kernel_size, mode)
    by_padded, by_weight, _ = torch.ops.aten.convolution_backward(
        *(everywhere, padded, weight, None, [stride, stride], list(zeros), [1, 1], False, [0, 0], 1),
        [needs_input, needs_weight, False],
    )
    if needs_input:
        by_padded = unwrap_padding(by_padded, (input.shape[2], input.shape[3]), kernel_size, mode)
    return (
        by_padded.contiguous(memory_format=format_of(input)) if needs_input else input.new_empty(0),
        by_weight.contiguous(memory_format=format_of(weight)) if needs_weight else weight.new_empty(0),
    )


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
    library.call("smoe_fold_routing", indices, *sizes, folded)
    return folded


def plane_geometry(
    input: torch.Size, weight: torch.Size, batch: int, num_selected: int, stride: int, padding_mode: str
) -> Geometry:
    """Describes a convolution of planes: `make_geometry` of `NativeConvolution`."""
    (_, C, H, W), (kernel_height, kernel_width) = input, weight[2:]
    return Geometry(
        *(batch, C, weight[0], num_selected, H, W, *output_grid(H, W, stride)),
        *(kernel_height, kernel_width, stride),
        *(int(padding_mode == "circular"), int(padding_mode != "zeros"), num_threads()),
        *(1, 1, 1, 0),  # a plane is a volume of one slice
        *(0, kernel_height // 2, kernel_width // 2),
    )


def _plane_grid(sizes: torch.Size, kernel: torch.Size, stride: int, padding_mode: str) -> tuple[int, ...]:
    del kernel, padding_mode  # the padding is that which keeps the grid
    return output_grid(sizes[0], sizes[1], stride)


PLANES = NativeConvolution(_plane_grid, plane_geometry, dense_routed_conv2d, dense_routed_conv2d_backward)


class HeldPlan:
    """Keeps a plan in the memory of the kernels as long as the object lives.

    For few samples, the kernels sort the pixels of a routing by their experts. They find a plan by the content of the
    routing and keep the last ones (csrc/expert_lists/plan.cpp); one that is held is made now, and is never forgotten.
    A pass that does not find its plan makes it, so results do not depend on what is held.

    Args:
        problem: A problem that the list kernels serve.
    """

    def __init__(self, problem: Problem) -> None:
        held = ctypes.c_void_p()
        problem.library.call("smoe_plan_hold", ctypes.byref(problem.geometry), problem.indices, ctypes.byref(held))
        weakref.finalize(self, _release, problem.library, held).atexit = False


def _release(library: NativeLibrary, held: ctypes.c_void_p) -> None:
    library.functions.smoe_plan_release(held)


def hold_plan(
    weight: torch.Tensor, indices: torch.Tensor, grid: tuple[int, ...], *, expert_channels: int = 1, stride: int = 1
) -> HeldPlan | None:
    """Makes the plan of a routing for the convolutions of one bank, and holds it.

    Args:
        weight: Bank of experts `(X * F, C, *kernel)`, of which only shape, dtype and device are read.
        indices: Selected experts `(1, E, P)`, int32.
        grid: Output grid with P pixels, of one to three axes.
        expert_channels: F, the number of outputs per expert.
        stride: Stride of all axes.

    Returns:
        None where passes of one sample use no plan: without kernels for this device and dtype, in tiny layers, in banks
        with filters for each pixel, and where a program is traced.

    Raises:
        ValueError: If an expert is out of range or selected twice at a pixel.
    """
    # The tensors of a tracer have no memory.
    is_real = type(indices) is torch.Tensor and indices.device.type == "cpu"
    library = library_for(weight) if is_real else None
    if library is None or indices.numel() == 0:
        return None
    check_choices(indices, len(weight) // expert_channels, grid[-1])
    depth, height, width = (1, 1, *grid)[-3:]
    kernel_depth, kernel_height, kernel_width = (1, 1, 1, *weight.shape[2:])[-3:]
    # Only the output grid matters: the input is one that fits, without padding.
    geometry = Geometry(
        *(1, weight.shape[1], len(weight), indices.shape[1] * expert_channels),
        *(depth * height * stride, width * stride, depth * height, width),
        *(kernel_depth * kernel_height, kernel_width, stride, 0, 0, num_threads()),
        *(depth * stride, depth, kernel_depth, 0, 0, 0, 0),
    )
    problem = Problem(library, geometry, fold_routing(library, indices, expert_channels))
    return HeldPlan(problem) if problem.family("forward") == LIST else None
