"""Implementations of the routed convolution of planes and volumes: dense for every device, CPU kernels, kept plans."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F

from smoe.ops._gather import add_routed_bias, gather_experts, scatter_experts
from smoe.ops._operators import Geometry, NativeLibrary, format_of, library_for, native_library, num_threads
from smoe.options import PADDING_MODES


def output_grid(height: int, width: int, stride: int) -> tuple[int, int]:
    """Rows and columns of the output of a convolution that keeps its grid at stride 1."""
    return (height - 1) // stride + 1, (width - 1) // stride + 1


def conv_grid(sizes: Sequence[int], kernel: Sequence[int], stride: int, padding_mode: str) -> tuple[int, ...]:
    """Sizes of the output, which are those of the input at stride 1, but for the padding mode `none`."""
    if padding_mode == "none":
        sizes = [size - taps + 1 for size, taps in zip(sizes, kernel, strict=True)]
    return tuple((size - 1) // stride + 1 for size in sizes)


def _borders(kernel: Sequence[int], padding_mode: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Width, along each axis, of the border that wraps and of the border of zeros."""
    whole, none = tuple(size // 2 for size in kernel), (0,) * len(kernel)
    if padding_mode == "zeros":
        return none, whole
    if padding_mode == "circular":
        return whole, none
    if padding_mode == "longitude":
        return (*none[:-1], whole[-1]), (*whole[:-1], 0)
    if padding_mode == "none":
        return none, none
    raise ValueError(f"padding_mode must be one of {', '.join(PADDING_MODES)}, got {padding_mode!r}")


def wrap_padding(
    input: torch.Tensor, kernel_size: Sequence[int], padding_mode: str
) -> tuple[torch.Tensor, tuple[int, ...]]:
    """Pads the axes that wrap, and returns the number of zeros that remain to be added.

    The zeros are left to the convolution, which adds them without a copy of the input.

    Args:
        input: `(B, C, *grid)`.
        kernel_size: Sizes of the kernel, all odd.
        padding_mode: `zeros`; `circular` wraps all axes; `longitude` wraps the last one and leaves zeros on the others;
            `none` pads nothing.

    Returns:
        The input with its wrapped borders, and the zeros to add on each side of each axis.
    """
    wraps, zeros = _borders(kernel_size, padding_mode)
    return _wrap(input, wraps), zeros


def _wrap(input: torch.Tensor, borders: tuple[int, ...]) -> torch.Tensor:
    grid = input.shape[2:]
    if not any(borders):
        return input
    if all(border <= size for border, size in zip(borders, grid, strict=True)):
        return F.pad(input, [border for border in reversed(borders) for _ in range(2)], mode="circular")
    # F.pad wraps at most once around; a kernel wider than the grid goes round several times.
    for axis, (size, border) in enumerate(zip(grid, borders, strict=True), start=2):
        if border:
            input = input.index_select(axis, torch.arange(-border, size + border, device=input.device) % size)
    return input


def unwrap_padding(
    gradient: torch.Tensor, grid: Sequence[int], kernel_size: Sequence[int], padding_mode: str
) -> torch.Tensor:
    """The transpose of `wrap_padding`: adds the gradient of each wrapped border to the pixels that it copies."""
    wraps, _ = _borders(kernel_size, padding_mode)
    for axis, (size, border) in enumerate(zip(grid, wraps, strict=True), start=2):
        if border == 0:
            continue
        total = gradient.narrow(axis, border, size).clone()
        # The border holds whole and partial copies of the axis: copy k begins at border + k * size.
        for copy in range(-(-border // size), 0, -1):
            begin = max(border - copy * size, 0)
            length = border - (copy - 1) * size - begin
            total.narrow(axis, size - length, length).add_(gradient.narrow(axis, begin, length))
            begin = border + copy * size
            length = min(begin + size, size + 2 * border) - begin
            total.narrow(axis, 0, length).add_(gradient.narrow(axis, begin, length))
        gradient = total
    return gradient


def convolve(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    stride: int = 1,
    padding_mode: str = "zeros",
) -> torch.Tensor:
    """Convolves `(B, C, *grid)` with `(O, C, *kernel)`, a plane or a volume; padding keeps the grid at stride 1."""
    apply = F.conv2d if weight.ndim == 4 else F.conv3d
    if padding_mode == "zeros":
        return apply(input, weight, bias, stride=stride, padding=[size // 2 for size in weight.shape[2:]])
    padded, zeros = wrap_padding(input, weight.shape[2:], padding_mode)
    return apply(padded, weight, bias, stride=stride, padding=zeros)


def dense_routed_conv(
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    expert_channels: int = 1,
    stride: int = 1,
    padding_mode: str = "zeros",
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Arguments and result as the operators; cost and memory follow the whole bank X, not E."""
    if 0 in input.shape[1:]:
        # torch's convolution refuses these sizes; a sum over no channels is zero.
        grid = conv_grid(input.shape[2:], weight.shape[2:], stride, padding_mode)
        zeros = input.new_zeros(input.shape[0], indices.shape[1] * expert_channels, *grid)
        return zeros if bias is None else add_routed_bias(zeros, bias, indices, expert_channels)
    outputs = convolve(input, weight, bias, stride=stride, padding_mode=padding_mode)
    return gather_experts(outputs, indices, expert_channels).contiguous(memory_format=format_of(input))


def dense_routed_conv_backward(
    error: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    expert_channels: int,
    stride: int,
    padding_mode: str,
    needs_input: bool,
    needs_weight: bool,
    needs_bias: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of input, weight and bias, each in the memory format of its tensor; one that is not needed is empty."""
    everywhere = scatter_experts(error, indices, weight.shape[0] // expert_channels, expert_channels)
    kernel, num_axes = weight.shape[2:], weight.ndim - 2
    padded, zeros = wrap_padding(input, kernel, padding_mode)
    by_padded, by_weight, _ = torch.ops.aten.convolution_backward(
        *(everywhere, padded, weight, None, [stride] * num_axes, zeros, [1] * num_axes, False, [0] * num_axes, 1),
        [needs_input, needs_weight, False],
    )
    if needs_input:
        by_padded = unwrap_padding(by_padded, input.shape[2:], kernel, padding_mode)
    return (
        by_padded.contiguous(memory_format=format_of(input)) if needs_input else input.new_empty(0),
        by_weight.contiguous(memory_format=format_of(weight)) if needs_weight else weight.new_empty(0),
        everywhere.sum(dim=(0, *range(2, everywhere.ndim))) if needs_bias else weight.new_empty(0),
    )


def check_choices(indices: torch.Tensor, num_experts: int, width: int) -> None:
    """Raises a ValueError with the place if an expert is out of range or selected twice at a pixel."""
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
    if library is not None and routing.dtype == torch.int32:
        problem = torch.zeros(4, dtype=torch.int64)
        library.call("smoe_check_routing", routing.contiguous(), *routing.shape, num_experts, problem)
        return tuple(problem.tolist()) if problem[0] else None
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


Direction = Literal["forward", "input_gradient", "weight_gradient"]

# Kernels by what lies in their vector lanes.
PIXEL, LIST, BATCH, FAMILY = "smoe_pixel", "smoe_list", "smoe_batch", "smoe_family"
# By the joint choice of several families, and channels.
JOINT, CHANNEL = "smoe_joint", "smoe_channel"
_SMALLEST_BATCH: dict[Direction, int] = {"forward": 7, "input_gradient": 12, "weight_gradient": 6}


class Problem(NamedTuple):
    """A routed convolution for the kernels: its sizes, output grid, and the kernels of each direction.

    The last kernel serves any routing; one before it does if the routing is one of families.
    """

    geometry: Geometry
    grid: tuple[int, ...]
    kernels: dict[Direction, list[str]]


@functools.lru_cache(maxsize=1024)
def make_problem(
    input: torch.Size, weight: torch.Size, routing: torch.Size, stride: int, padding_mode: str, threads: int
) -> Problem:
    """Describes a routed convolution with one output for each expert, by the shapes of its tensors.

    Where each sample has a routing of its own, the geometry is that of one sample. The shape alone decides the kernels,
    so that a run can be repeated bit by bit.
    """
    # A stride beyond the grid has one output whatever it is, but the kernels allocate by it.
    stride = min(stride, max(input[2:]))
    grid = conv_grid(input[2:], weight[2:], stride, padding_mode)
    (D, H, W), (output_depth, output_height, output_width), (kernel_depth, kernel_height, kernel_width) = (
        _volume(sizes) for sizes in (input[2:], grid, weight[2:])
    )
    batch, taps = input[0] if routing[0] == 1 else 1, weight[2:].numel()
    is_circular = int(padding_mode == "circular")
    is_padded = int(padding_mode != "none")
    geometry = Geometry(
        *(batch, input[1], weight[0], routing[1]),
        *(D * H, W, output_depth * output_height, output_width),
        *(kernel_depth * kernel_height, kernel_width, stride),
        *(is_circular, int(padding_mode in ("circular", "longitude")), threads),
        *(D, output_depth, kernel_depth, is_circular * (len(input) - 4)),
        *(is_padded * (size // 2) for size in (kernel_depth, kernel_height, kernel_width)),
    )
    is_tiny = taps * input[1] * routing[1] <= (64 if batch < 4 else 96)
    kernels: dict[Direction, list[str]] = {}
    library = native_library()
    has_wide_lanes = library is not None and library.instruction_set == "avx512"
    for direction, smallest_batch in _SMALLEST_BATCH.items():
        # In a bank with filters for each pixel, the list of pixels of an expert is too short.
        is_small = routing[1] < 4 or batch < smallest_batch or (has_wide_lanes and direction == "input_gradient")
        lanes = LIST if is_small and weight[0] <= 8192 else BATCH
        kernels[direction] = [f"{PIXEL if is_tiny else lanes}_{direction}"]
    if library is not None and not is_tiny:
        if library.has_family_lanes and suits_family_lanes(geometry):
            kernels["forward"].insert(0, f"{FAMILY}_forward")
        if library.instruction_set != "portable" and suits_joint_lists(geometry, has_wide_lanes):
            kernels["weight_gradient"].insert(0, f"{JOINT}_weight_gradient")
        if has_wide_lanes and suits_channel_lanes(geometry, library.has_family_lanes):
            kernels["input_gradient"].insert(0, f"{CHANNEL}_input_gradient")
    return Problem(geometry, grid, kernels)


def suits_family_lanes(geometry: Geometry) -> bool:
    """Whether a forward pass is faster with families of two experts in the lanes, if the routing has such families."""
    lanes = -(-geometry.selected // 16) * 16
    # The lists reach half of this kernel's rate, samples in the lanes most of it, but with few channels.
    share = 0.5 if geometry.batch < 7 or geometry.channels <= 16 else 0.8
    return geometry.experts == 2 * geometry.selected >= 2 * share * lanes


def suits_joint_lists(geometry: Geometry, has_wide_lanes: bool) -> bool:
    """Whether the weight gradient is faster by joint choices of several families, if the routing has families."""
    num_candidates, rest = divmod(geometry.experts, geometry.selected)
    # Narrow lanes: the lists of more candidates are short, and pay where other kernels are at their worst.
    is_short = num_candidates in (3, 4) and (has_wide_lanes or 6 <= geometry.batch < 16)
    return rest == 0 and geometry.selected >= 4 and (num_candidates == 2 or is_short)


def suits_channel_lanes(geometry: Geometry, has_family_lanes: bool) -> bool:
    """Whether the input gradient is faster with channels in the lanes, if the routing has families."""
    num_candidates, rest = divmod(geometry.experts, geometry.selected)
    if rest or geometry.stride != 1 or geometry.kernel_width != 3:
        return False
    if num_candidates == 2 and has_family_lanes and geometry.kernel_height == 3 * geometry.kernel_depth:
        lanes = 16 if geometry.channels <= 16 else -(-geometry.channels // 32) * 32
        # Pairs of samples share the blends for two vectors of channels; for one, their lists are as fast.
        return geometry.channels >= 0.75 * lanes and (geometry.batch == 1 or lanes > 16)
    # Without blends, the weights of a pixel must be many; several samples share what the lists load.
    is_plane = geometry.kernel_depth == geometry.depth == 1
    return is_plane and geometry.batch == 1 and 2 <= num_candidates <= 4 and geometry.channels >= 64


def _run(
    library: NativeLibrary,
    problem: Problem,
    direction: Direction,
    first: torch.Tensor,
    second: torch.Tensor,
    indices: torch.Tensor,
    result: torch.Tensor,
    *bias: torch.Tensor | None,
) -> None:
    """Fills `result`; the weight gradient, where samples have routings of their own, for each of them."""
    geometry = ctypes.byref(problem.geometry)
    if len(indices) == 1:
        arguments = (geometry, first, second, *bias, indices, result)
        for name in problem.kernels[direction]:
            if library.call(name, *arguments):
                break
        return
    for sample, routing in enumerate(indices):
        # All samples share the weights, which stand second but for their own gradient.
        operand = second[sample] if direction == "weight_gradient" else second
        one = (first[sample : sample + 1], operand, routing[None], result[sample : sample + 1])
        _run(library, problem, direction, *one, *bias)


def native_routed_conv(
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    expert_channels: int,
    stride: int,
    padding_mode: str,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """The output on a CPU: by the kernels where they serve, dense otherwise."""
    library = library_for(input, weight, *(() if bias is None else (bias,)))
    if library is None or input.numel() == 0:
        return dense_routed_conv(input, weight, indices, expert_channels, stride, padding_mode, bias)
    indices = _fold_routing(library, indices, expert_channels)
    problem = make_problem(input.shape, weight.shape, indices.shape, stride, padding_mode, num_threads())
    output = input.new_empty(input.shape[0], indices.shape[1], *problem.grid)
    if output.numel():
        bias = bias if bias is None else bias.contiguous()
        _run(library, problem, "forward", input.contiguous(), weight.contiguous(), indices, output, bias)
    return output


def native_routed_conv_backward(
    error: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    expert_channels: int,
    stride: int,
    padding_mode: str,
    needs_input: bool,
    needs_weight: bool,
    needs_bias: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of input, weight and bias on a CPU; one that is not needed is empty."""
    library = library_for(error, input, weight)
    if library is None:
        options = (expert_channels, stride, padding_mode)
        needs = (needs_input, needs_weight, needs_bias)
        return dense_routed_conv_backward(error, input, weight, indices, *options, *needs)
    by_input, by_weight = input.new_empty(0), weight.new_empty(0)
    by_bias = weight.new_zeros(len(weight) if needs_bias else 0)
    if error.numel() == 0 or input.numel() == 0:
        if needs_bias and error.numel():
            everywhere = scatter_experts(error, indices, len(weight) // expert_channels, expert_channels)
            by_bias = everywhere.flatten(2).sum(dim=(0, 2))
        return (
            torch.zeros_like(input) if needs_input else by_input,
            torch.zeros_like(weight) if needs_weight else by_weight,
            by_bias,
        )
    indices = _fold_routing(library, indices, expert_channels)
    problem = make_problem(input.shape, weight.shape, indices.shape, stride, padding_mode, num_threads())
    error, input, weight = error.contiguous(), input.contiguous(), weight.contiguous()
    if needs_input:
        by_input = torch.empty_like(input)
        _run(library, problem, "input_gradient", error, weight, indices, by_input)
    if needs_weight:
        is_shared = len(indices) == 1
        by_weight = torch.empty_like(weight) if is_shared else weight.new_empty(input.shape[0], *weight.shape)
        _run(library, problem, "weight_gradient", input, error, indices, by_weight)
        by_weight = by_weight if is_shared else by_weight.sum(dim=0)
    if needs_bias:
        for part, routing in zip([error] if len(indices) == 1 else error.split(1), indices, strict=True):
            found = torch.empty_like(by_bias)
            library.call("smoe_bias_gradient", ctypes.byref(problem.geometry), part, routing, found)
            by_bias += found
    return by_input, by_weight, by_bias


def _fold_routing(library: NativeLibrary, indices: torch.Tensor, expert_channels: int) -> torch.Tensor:
    """The routing with an expert's F outputs as F experts, `(S, E * F, P)`."""
    if indices.dtype != torch.int32 or indices.device.type != "cpu":
        raise ValueError(f"the routed convolution needs int32 indices on cpu, got {indices.dtype} on {indices.device}")
    indices = indices.contiguous()
    if expert_channels == 1:
        return indices
    num_samples, num_selected, num_pixels = indices.shape
    folded = indices.new_empty(num_samples, num_selected * expert_channels, num_pixels)
    # An expert's outputs are adjacent, so that the experts of several samples are folded like those of one.
    library.call("smoe_fold_routing", indices, num_samples * num_selected, num_pixels, expert_channels, folded)
    return folded


def _volume(sizes: Sequence[int]) -> tuple[int, ...]:
    return (1, 1, 1, *sizes)[-3:]
