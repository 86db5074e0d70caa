"""The native routed convolution as PyTorch operators: schema, shapes and gradients.

`smoe::routed_conv2d` works under torch.compile, torch.export and opcheck. A program exported where the kernels exist
still runs forward where they do not: the dense implementation takes their place.
"""

from __future__ import annotations

from typing import cast

import torch

from smoe.ops.padding import output_grid
from smoe.ops.routed_conv.dense import dense_routed_conv2d
from smoe.ops.routed_conv.native import is_supported, native_backward, native_forward
from smoe.options import PaddingMode

# Defined by schema, not by torch.library.custom_op, whose Python wrapping costs a small layer a tenth of its time.
_LIBRARY = torch.library.Library("smoe", "FRAGMENT")
_OPTIONS = "int expert_channels, int stride, str padding_mode"
_LIBRARY.define(f"routed_conv2d(Tensor input, Tensor weight, Tensor indices, {_OPTIONS}) -> Tensor")
_LIBRARY.define(
    f"routed_conv2d_backward(Tensor error, Tensor input, Tensor weight, Tensor indices, {_OPTIONS}, "
    "bool needs_input, bool needs_weight) -> (Tensor, Tensor)"
)


@torch.library.impl(_LIBRARY, "routed_conv2d", "CPU")
def _forward(input, weight, indices, expert_channels, stride, padding_mode):
    mode = cast(PaddingMode, padding_mode)
    if is_supported(input, weight):
        return native_forward(input, weight, indices, expert_channels, stride, mode)
    return dense_routed_conv2d(
        input, weight, indices, expert_channels=expert_channels, stride=stride, padding_mode=mode
    )


@torch.library.impl(_LIBRARY, "routed_conv2d_backward", "CPU")
def _backward(error, input, weight, indices, expert_channels, stride, padding_mode, needs_input, needs_weight):
    if not is_supported(input, weight):
        raise RuntimeError("smoe::routed_conv2d has gradients where its kernels are built; see smoe bench backends")
    mode = cast(PaddingMode, padding_mode)
    needs = (needs_input, needs_weight)
    return native_backward(error, input, weight, indices, expert_channels, stride, mode, needs)


@torch.library.register_fake("smoe::routed_conv2d", lib=_LIBRARY)
def _(input, weight, indices, expert_channels, stride, padding_mode):
    del weight, padding_mode
    height, width = output_grid(input.shape[2], input.shape[3], stride)
    return input.new_empty(input.shape[0], indices.shape[-3] * expert_channels, height, width)


@torch.library.register_fake("smoe::routed_conv2d_backward", lib=_LIBRARY)
def _(error, input, weight, indices, expert_channels, stride, padding_mode, needs_input, needs_weight):
    del error, indices, expert_channels, stride, padding_mode
    return (
        input.new_empty(input.shape if needs_input else (0,)),
        weight.new_empty(weight.shape if needs_weight else (0,)),
    )


def _setup_context(ctx, inputs, output):
    del output
    input, weight, indices, ctx.expert_channels, ctx.stride, ctx.padding_mode = inputs
    ctx.save_for_backward(input, weight, indices)


def _gradients(ctx, error):
    input, weight, indices = ctx.saved_tensors
    needs_input, needs_weight = ctx.needs_input_grad[:2]
    input_gradient, weight_gradient = torch.ops.smoe.routed_conv2d_backward(
        error, input, weight, indices, ctx.expert_channels, ctx.stride, ctx.padding_mode, needs_input, needs_weight
    )
    return (
        input_gradient if needs_input else None,
        weight_gradient if needs_weight else None,
        *(None, None, None, None),
    )


torch.library.register_autograd("smoe::routed_conv2d", _gradients, setup_context=_setup_context, lib=_LIBRARY)
