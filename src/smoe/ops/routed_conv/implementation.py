"""An implementation of a routed convolution, as a value, and the registration of its operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from smoe.ops.registration import call_operator, register_operator


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
