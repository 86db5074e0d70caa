"""Convolutions whose filters the routing selects at each pixel: the operator, its definition, and its dense form."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from smoe.ops._conv_kernels import (
    PLANES,
    Implementation,
    assert_in_range,
    check_choices,
    dense_routed_conv2d,
    dense_routed_conv2d_backward,
    output_grid,
    register_convolution,
    wrap_padding,
)
from smoe.ops._operators import autocast, call_operator, format_of, has_transforms, library_for
from smoe.ops.triton._planes import GPU_PLANES
from smoe.options import PADDING_MODES, PaddingMode


def reference_routed_conv2d(
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    *,
    expert_channels: int = 1,
    stride: int = 1,
    padding_mode: PaddingMode = "zeros",
) -> torch.Tensor:
    """Loops over samples, pixels, selected experts and taps; arguments as `smoe.ops.routed_conv2d`.

    Autograd differentiates it, so it defines the gradients too. Use it on small grids.
    """
    B, _, H, W = input.shape
    kernel_height, kernel_width = weight.shape[2:]
    output_height, output_width = output_grid(H, W, stride)
    indices = indices.expand(B, -1, -1).unflatten(2, (output_height, output_width))
    E = indices.shape[1]
    experts = weight.unflatten(0, (-1, expert_channels))

    def pixel(sample: int, row: int, column: int) -> torch.Tensor:
        if padding_mode in ("circular", "longitude"):
            column %= W
        if padding_mode == "circular":
            row %= H
        if not (0 <= row < H and 0 <= column < W):
            return torch.zeros_like(input[sample, :, 0, 0])
        return input[sample, :, row, column]

    def output_pixel(sample: int, slot: int, row: int, column: int) -> torch.Tensor:
        expert = experts[int(indices[sample, slot, row, column])]
        total = torch.zeros_like(expert[:, 0, 0, 0])
        for i in range(kernel_height):
            for j in range(kernel_width):
                source = pixel(sample, row * stride + i - kernel_height // 2, column * stride + j - kernel_width // 2)
                total = total + expert[:, :, i, j] @ source
        return total

    pixels = [
        output_pixel(sample, slot, row, column)
        for sample in range(B)
        for slot in range(E)
        for row in range(output_height)
        for column in range(output_width)
    ]
    stacked = torch.stack(pixels).reshape(B, E, output_height, output_width, expert_channels)
    return stacked.permute(0, 1, 4, 2, 3).flatten(1, 2)


def routed_conv2d(
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    *,
    expert_channels: int = 1,
    stride: int = 1,
    padding_mode: PaddingMode = "zeros",
    check_indices: bool = True,
) -> torch.Tensor:
    """Applies, at each output pixel, the filters of the experts selected there.

    Gradients reach `input` and `weight`. Padding keeps the grid at stride 1.

    Args:
        input: `(B, C, H, W)`.
        weight: Bank of experts `(X * F, C, kh, kw)` with odd `kh` and `kw`; expert `x` owns the filters
            `[x * F, (x + 1) * F)`.
        indices: Selected experts at the pixels of the output grid, `(1 or B, E, H' * W')`; int32, or int64, which is
            converted.
        expert_channels: F, the number of outputs per expert.
        stride: Stride of both axes; the output grid has `ceil(H / stride) x ceil(W / stride)` pixels.
        padding_mode: `zeros`, `circular` (both axes wrap) or `longitude` (the width wraps, zeros on the height).
        check_indices: Check on a CPU that the indices are in range and distinct at each pixel, and on a GPU that they
            are in range. Not needed for the indices of `top_experts`.

    Returns:
        `(B, E * F, H', W')`; the channels of a pixel follow the order of its `indices`.
    """
    _check(input, weight, indices, expert_channels, stride, padding_mode)
    num_experts = weight.shape[0] // expert_channels
    if check_indices and not torch.compiler.is_compiling():
        if indices.device.type == "cpu":
            check_choices(indices, num_experts, output_grid(input.shape[2], input.shape[3], stride)[1])
        elif indices.is_cuda:
            assert_in_range(indices, num_experts)
    input, weight = autocast(input, weight)
    if indices.dtype != torch.int32:
        indices = indices.to(torch.int32)
    return call_operator(_routed_conv2d, input, weight, indices, expert_channels, stride, padding_mode)


def _check(
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    expert_channels: int,
    stride: int,
    padding_mode: str,
) -> None:
    if input.ndim != 4:
        raise ValueError(f"input must be (B, C, H, W), got shape {tuple(input.shape)}")
    if not input.is_floating_point():
        raise ValueError(f"input must be floating, got {input.dtype}; convert it with input.float()")
    if weight.ndim != 4 or weight.shape[1] != input.shape[1]:
        raise ValueError(
            f"weight must be (X * F, {input.shape[1]}, kh, kw) for an input with {input.shape[1]} channels, "
            f"got shape {tuple(weight.shape)}"
        )
    if weight.shape[2] % 2 == 0 or weight.shape[3] % 2 == 0:
        raise ValueError(f"the kernel must have odd sides to keep the grid, got {tuple(weight.shape[2:])}")
    if expert_channels < 1 or weight.shape[0] % expert_channels:
        raise ValueError(f"{weight.shape[0]} filters cannot be shared out in experts of {expert_channels} channels")
    if stride < 1:
        raise ValueError(f"stride must be at least 1, got {stride}")
    if padding_mode not in PADDING_MODES:
        raise ValueError(f"padding_mode must be one of {', '.join(PADDING_MODES)}, got {padding_mode!r}")
    if min(*input.shape[1:], weight.shape[0]) < 1:
        raise ValueError(
            f"input and weight need at least one channel, pixel and filter, got shapes {tuple(input.shape)} and "
            f"{tuple(weight.shape)}"
        )
    _refuse_mixed_devices(input, weight, indices)
    if indices.ndim != 3 or indices.shape[1] < 1 or indices.dtype not in (torch.int64, torch.int32):
        raise ValueError(
            f"indices must be int32 or int64, (1 or B, E, P) with flat pixels, got {indices.dtype} of shape "
            f"{tuple(indices.shape)}"
        )
    if indices.shape[0] not in (1, input.shape[0]):
        raise ValueError(f"indices are for {indices.shape[0]} samples but the input has {input.shape[0]}")
    height, width = output_grid(input.shape[2], input.shape[3], stride)
    if indices.shape[2] != height * width:
        raise ValueError(
            f"the routing has {indices.shape[2]} pixels but the output grid is {(height, width)} "
            f"(input {tuple(input.shape[2:])}, stride {stride}); make the gate for the output grid (spatial_shape)"
        )


def _refuse_mixed_devices(input: torch.Tensor, weight: torch.Tensor, indices: torch.Tensor) -> None:
    if not input.device == weight.device == indices.device:
        raise ValueError(
            f"input, weight and indices must be on one device, got {input.device}, {weight.device} and {indices.device}"
        )


def _fake(input, weight, indices, expert_channels, stride, padding_mode):
    del padding_mode
    _refuse_mixed_devices(input, weight, indices)
    grid = output_grid(input.shape[2], input.shape[3], stride)
    output = input.new_empty(input.shape[0], indices.shape[1] * expert_channels, *grid)
    return output.contiguous(memory_format=_promised_format(input, input, weight))


def _fake_backward(error, input, weight, indices, expert_channels, stride, padding_mode, needs_input, needs_weight):
    del error, expert_channels, stride, padding_mode
    _refuse_mixed_devices(input, weight, indices)
    by_input, by_weight = (
        torch.empty_like(tensor, memory_format=_promised_format(tensor, input, weight))
        if is_needed
        else tensor.new_empty(0)
        for tensor, is_needed in ((input, needs_input), (weight, needs_weight))
    )
    return by_input, by_weight


def _promised_format(like: torch.Tensor, input: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """The kernels write contiguous tensors; the dense implementation keeps the format of its arguments."""
    return format_of(like) if library_for(input, weight) is None else torch.contiguous_format


_routed_conv2d = register_convolution(
    "routed_conv2d",
    dense=Implementation(dense_routed_conv2d, dense_routed_conv2d_backward),
    native=Implementation(PLANES.forward, PLANES.backward),
    cuda=Implementation(GPU_PLANES.forward, GPU_PLANES.backward),
    fake=Implementation(_fake, _fake_backward),
)


# Number of weights up to which the kernels of tiny SMoE layers take at most a third of the time of `F.conv2d`, and a
# tenth for contiguous tensors (32 samples of 64 x 64, forward and backward, one thread).
_TINY = 96


def grid_conv2d(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    stride: int = 1,
    padding_mode: PaddingMode = "zeros",
) -> torch.Tensor:
    """Convolves with padding that keeps the grid at stride 1. Gradients reach `input`, `weight` and `bias`.

    A tiny convolution in float32 on a CPU is computed as an SMoE layer in which every pixel selects every filter.

    Args:
        input: `(B, C, H, W)`.
        weight: `(out_channels, C, kh, kw)` with odd `kh` and `kw`.
        bias: `(out_channels,)`, added to each pixel.
        stride: Stride of both axes; the output grid has `ceil(H / stride) x ceil(W / stride)` pixels.
        padding_mode: `zeros`, `circular` (both axes wrap) or `longitude` (the width wraps, zeros on the height).
    """
    if _is_tiny(input, weight):
        num_filters = weight.shape[0]
        grid = output_grid(input.shape[2], input.shape[3], stride)
        every_filter = torch.arange(num_filters, dtype=torch.int32)[None, :, None].expand(1, -1, grid[0] * grid[1])
        output = routed_conv2d(
            input, weight, every_filter.contiguous(), stride=stride, padding_mode=padding_mode, check_indices=False
        )
        return output if bias is None else output + bias[:, None, None]
    padded, zeros = wrap_padding(input, (weight.shape[2], weight.shape[3]), padding_mode)
    return F.conv2d(padded, weight, bias, stride=stride, padding=zeros)


def _is_tiny(input: torch.Tensor, weight: torch.Tensor) -> bool:
    # For few samples the indices cost more than they save; under autocast the convolution is not in float32.
    is_batch = input.ndim == 4 and input.shape[0] >= 4
    is_eager = not torch.is_autocast_enabled("cpu") and not has_transforms()
    return weight.numel() <= _TINY and is_batch and is_eager and library_for(input, weight) is not None


def local_conv2d(
    input: torch.Tensor, weight: torch.Tensor, *, stride: int = 1, padding_mode: PaddingMode = "zeros"
) -> torch.Tensor:
    """Applies the filters of each pixel. Gradients reach `input` and `weight`. Padding keeps the grid at stride 1.

    Args:
        input: `(B, C, H, W)`.
        weight: `(O, H', W', C, kh, kw)` for the output grid, with odd `kh` and `kw`.
        stride: Stride of both axes.
        padding_mode: `zeros`, `circular` (both axes wrap) or `longitude` (the width wraps, zeros on the height).

    Returns:
        `(B, O, H', W')`.
    """
    grid = output_grid(input.shape[2], input.shape[3], stride)
    if weight.ndim != 6 or tuple(weight.shape[1:3]) != grid or weight.shape[3] != input.shape[1]:
        raise ValueError(
            f"weight must be (O, {grid[0]}, {grid[1]}, {input.shape[1]}, kh, kw) for an input of shape "
            f"{tuple(input.shape)} at stride {stride}, got {tuple(weight.shape)}"
        )
    if library_for(input, weight) is not None and not torch.is_autocast_enabled("cpu") and not has_transforms():
        # Every filter is an expert that one pixel selects.
        filters = weight.flatten(0, 2)
        indices = torch.arange(len(filters), dtype=torch.int32).view(1, -1, grid[0] * grid[1])
        return routed_conv2d(input, filters, indices, stride=stride, padding_mode=padding_mode, check_indices=False)
    return unfolded_local_conv2d(input, weight, stride=stride, padding_mode=padding_mode)


def unfolded_local_conv2d(
    input: torch.Tensor, weight: torch.Tensor, *, stride: int = 1, padding_mode: PaddingMode = "zeros"
) -> torch.Tensor:
    """Unfolds the patches, multiplies and sums: any device, any dtype. Arguments as `local_conv2d`."""
    out_channels, height, width, _, *kernel_size = weight.shape
    padded, zeros = wrap_padding(input, (kernel_size[0], kernel_size[1]), padding_mode)
    patches = F.unfold(padded, tuple(kernel_size), padding=zeros, stride=stride)
    products = torch.einsum("bkp,opk->bop", patches, weight.flatten(1, 2).flatten(2))
    return products.view(-1, out_channels, height, width)
