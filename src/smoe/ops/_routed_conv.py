"""Convolutions whose filters the routing selects at each pixel: the operators, and functions that call them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from smoe.ops._conv_kernels import (
    assert_in_range,
    check_choices,
    conv_grid,
    convolve,
    dense_routed_conv,
    dense_routed_conv_backward,
    native_routed_conv,
    native_routed_conv_backward,
    output_grid,
    wrap_padding,
)
from smoe.ops._gather import add_routed_bias, scatter_experts
from smoe.ops._operators import (
    FLOP_FORMULAS,
    call_operator,
    format_of,
    has_transforms,
    library_for,
    register_operator,
)
from smoe.ops.triton._choice import why_not_sparse
from smoe.options import PADDING_MODES, PaddingMode


def routed_conv2d(
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    *,
    expert_channels: int = 1,
    stride: int = 1,
    padding_mode: PaddingMode = "zeros",
    bias: torch.Tensor | None = None,
    check_indices: bool = True,
) -> torch.Tensor:
    """Applies, at each output pixel, the filters of the experts selected there.

    Gradients reach `input`, `weight` and `bias`. Padding keeps the grid at stride 1.

    Args:
        input: `(B, C, H, W)`.
        weight: Bank of experts `(X * F, C, kh, kw)` with odd `kh` and `kw`; expert `x` owns the filters
            `[x * F, (x + 1) * F)`.
        indices: Selected experts at the pixels of the output grid, `(1 or B, E, H' * W')`; int32, or int64, which is
            converted.
        expert_channels: F, the number of outputs per expert.
        stride: Stride of both axes; the output grid has `ceil(H / stride) x ceil(W / stride)` pixels.
        padding_mode: `zeros`, `circular` (both axes wrap) or `longitude` (the width wraps, zeros on the height).
        bias: Bias of each filter, `(X * F,)`; None for none.
        check_indices: Check on a CPU that the indices are in range and distinct at each pixel, and on a GPU that they
            are in range. Not needed for the indices of `top_experts`.

    Returns:
        `(B, E * F, H', W')`; the channels of a pixel follow the order of its `indices`.
    """
    _check(input, weight, indices, expert_channels, stride, padding_mode)
    if check_indices and not torch.compiler.is_compiling():
        num_experts = weight.shape[0] // expert_channels
        if indices.device.type == "cpu":
            check_choices(indices, num_experts, output_grid(input.shape[2], input.shape[3], stride)[1])
        elif indices.is_cuda:
            assert_in_range(indices, num_experts)
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias must be ({weight.shape[0]},), one for each filter, got shape {tuple(bias.shape)}")
    return routed_conv(input, weight, indices, expert_channels, stride, padding_mode, bias)


def routed_conv(
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    expert_channels: int,
    stride: int,
    padding_mode: str,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """As `routed_conv2d`, for planes and volumes `(B, C, D, H, W)`, for callers that have made their checks.

    The padding mode `none` computes only the pixels whose filter lies inside the grid.
    """
    device_type = input.device.type
    if torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type):
        dtype = torch.get_autocast_dtype(device_type)
        input, weight = (part if part.dtype == torch.float64 else part.to(dtype) for part in (input, weight))
    if bias is not None and bias.dtype != input.dtype:
        bias = bias.to(input.dtype)
    operator = _routed_conv2d if input.ndim == 4 else _routed_conv3d
    return call_operator(operator, input, weight, indices.to(torch.int32), expert_channels, stride, padding_mode, bias)


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
    if any(size % 2 == 0 for size in weight.shape[2:]):
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
    grid = output_grid(input.shape[2], input.shape[3], stride)
    if indices.shape[2] != grid[0] * grid[1]:
        raise ValueError(
            f"the routing has {indices.shape[2]} pixels but the output grid is {grid} (input {tuple(input.shape[2:])}, "
            f"stride {stride}); make the gate for the output grid (spatial_shape)"
        )


def _refuse_mixed_devices(input: torch.Tensor, weight: torch.Tensor, indices: torch.Tensor) -> None:
    if not input.device == weight.device == indices.device:
        raise ValueError(
            f"input, weight and indices must be on one device, got {input.device}, {weight.device} and {indices.device}"
        )


def _cuda(input, weight, indices, expert_channels, stride, padding_mode, bias=None):
    options = (expert_channels, stride, padding_mode)
    if why_not_sparse(input, weight, indices, expert_channels) is not None:
        return dense_routed_conv(input, weight, indices, *options, bias)
    from smoe.ops.triton._kernels import triton_routed_conv2d

    output = triton_routed_conv2d(input, weight, indices, *options)
    return output if bias is None else add_routed_bias(output, bias, indices, expert_channels)


def _cuda_backward(error, input, weight, indices, expert_channels, *options):
    arguments = (error, input, weight, indices, expert_channels, *options)
    if error.dtype != input.dtype or why_not_sparse(input, weight, indices, expert_channels) is not None:
        return dense_routed_conv_backward(*arguments)
    from smoe.ops.triton._kernels import triton_routed_conv2d_backward

    needs_bias = options[-1]
    by_bias = weight.new_empty(0)
    if needs_bias:
        # Sums without atomic operations, which have no order.
        total, num_experts = error.sum(dim=0, keepdim=True), len(weight) // expert_channels
        by_bias = scatter_experts(total, indices, num_experts, expert_channels).flatten(2).sum(dim=(0, 2))
    return *triton_routed_conv2d_backward(*arguments[:-1]), by_bias


def _fake(input, weight, indices, expert_channels, stride, padding_mode, bias=None):
    del bias
    _refuse_mixed_devices(input, weight, indices)
    grid = conv_grid(input.shape[2:], weight.shape[2:], stride, padding_mode)
    output = input.new_empty(input.shape[0], indices.shape[1] * expert_channels, *grid)
    return output.contiguous(memory_format=_promised_format(input, input, weight))


def _fake_backward(
    error, input, weight, indices, expert_channels, stride, padding_mode, needs_input, needs_weight, needs_bias
):
    del error, expert_channels, stride, padding_mode
    _refuse_mixed_devices(input, weight, indices)
    by_input, by_weight = (
        torch.empty_like(tensor, memory_format=_promised_format(tensor, input, weight))
        if is_needed
        else tensor.new_empty(0)
        for tensor, is_needed in ((input, needs_input), (weight, needs_weight))
    )
    return by_input, by_weight, weight.new_empty(weight.shape[0] if needs_bias else 0)


def _promised_format(like: torch.Tensor, input: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """The kernels write contiguous tensors; the dense implementation keeps the format of its arguments."""
    return format_of(like) if library_for(input, weight) is None else torch.contiguous_format


def _register(name: str, **cuda: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    """Registers a routed convolution and its gradients, which can be differentiated any number of times.

    The convolution is linear in its input and in its weight, so the derivatives of its gradients are such convolutions
    and gradients again: the same kernels compute them.
    """
    options = "int expert_channels, int stride, str padding_mode"

    def keep(ctx, inputs, output):
        del output
        input, weight, indices, *ctx.options, _ = inputs
        ctx.save_for_backward(input, weight, indices)

    def gradients(ctx, error):
        *needs, _, _, _, _, needs_bias = ctx.needs_input_grad
        found = call_operator(backward, error, *ctx.saved_tensors, *ctx.options, *needs, needs_bias)
        by_input, by_weight = found[0] if needs[0] else None, found[1] if needs[1] else None
        return by_input, by_weight, None, None, None, None, found[2] if needs_bias else None

    def keep_for_second(ctx, inputs, output):
        del output
        error, input, weight, indices, *ctx.options, _, _, _ = inputs
        ctx.save_for_backward(error, input, weight, indices)
        ctx.set_materialize_grads(False)

    def second_gradients(
        ctx, of_input: torch.Tensor | None, of_weight: torch.Tensor | None, of_bias: torch.Tensor | None
    ):
        error, input, weight, indices = ctx.saved_tensors
        needs_error, needs_input, needs_weight = ctx.needs_input_grad[:3]
        by_error = by_input = by_weight = None
        if needs_error and of_input is not None:
            by_error = call_operator(forward, of_input, weight, indices, *ctx.options, of_bias)
        elif needs_error and of_bias is not None:
            by_error = add_routed_bias(torch.zeros_like(error), of_bias, indices, ctx.options[0])
        if needs_error and of_weight is not None:
            part = call_operator(forward, input, of_weight, indices, *ctx.options, None)
            by_error = part if by_error is None else by_error + part
        if needs_input and of_weight is not None:
            by_input, *_ = call_operator(backward, error, input, of_weight, indices, *ctx.options, True, False, False)
        if needs_weight and of_input is not None:
            _, by_weight, _ = call_operator(
                backward, error, of_input, weight, indices, *ctx.options, False, True, False
            )
        return by_error, by_input, by_weight, *(None,) * 7

    backward: Callable[..., Any] = register_operator(
        f"{name}_backward(Tensor error, Tensor input, Tensor weight, Tensor indices, {options}, bool needs_input, "
        "bool needs_weight, bool needs_bias) -> (Tensor, Tensor, Tensor)",
        dense=dense_routed_conv_backward,
        native=native_routed_conv_backward,
        cuda=cuda.get("backward"),
        fake=_fake_backward,
        gradients=second_gradients,
        setup_context=keep_for_second,
    )
    forward: Callable[..., Any] = register_operator(
        f"{name}(Tensor input, Tensor weight, Tensor indices, {options}, Tensor? bias) -> Tensor",
        dense=dense_routed_conv,
        native=native_routed_conv,
        cuda=cuda.get("forward"),
        fake=_fake,
        gradients=gradients,
        setup_context=keep,
    )
    FLOP_FORMULAS[getattr(torch.ops.smoe, name)] = _flops
    FLOP_FORMULAS[getattr(torch.ops.smoe, f"{name}_backward")] = _flops_backward
    return forward


def _flops(input, weight, *options, out_val):
    del input, options
    return 2 * out_val.numel() * weight[0].numel()


def _flops_backward(error, input, weight, indices, expert_channels, stride, padding_mode, *needs, out_val):
    del input, indices, expert_channels, stride, padding_mode, out_val
    return 2 * error.numel() * weight[0].numel() * sum(needs[:2])


_routed_conv2d = _register("routed_conv2d", forward=_cuda, backward=_cuda_backward)
_routed_conv3d = _register("routed_conv3d")


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
    if weight.numel() <= _TINY and _is_batch(input, weight):
        num_filters = weight.shape[0]
        grid = output_grid(input.shape[2], input.shape[3], stride)
        every_filter = torch.arange(num_filters, dtype=torch.int32)[None, :, None].expand(1, -1, grid[0] * grid[1])
        return routed_conv(input, weight, every_filter.contiguous(), 1, stride, padding_mode, bias)
    return convolve(input, weight, bias, stride=stride, padding_mode=padding_mode)


def _is_batch(input: torch.Tensor, weight: torch.Tensor) -> bool:
    # For few samples the indices cost more than they save; under autocast the convolution is not in float32.
    is_batch = input.ndim == 4 and input.shape[0] >= 4 and input.shape[1] == weight.shape[1]
    is_eager = not torch.is_autocast_enabled("cpu") and not has_transforms()
    return is_batch and is_eager and library_for(input, weight) is not None


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
        return routed_conv(input, filters, indices, 1, stride, padding_mode)
    *kernel_size, num_outputs = *weight.shape[4:], len(weight)
    padded, zeros = wrap_padding(input, kernel_size, padding_mode)
    patches = F.unfold(padded, tuple(kernel_size), padding=zeros, stride=stride)
    products = torch.einsum("bkp,opk->bop", patches, weight.flatten(1, 2).flatten(2))
    return products.view(-1, num_outputs, *grid)
