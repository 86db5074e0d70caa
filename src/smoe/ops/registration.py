"""Registers operators with PyTorch's dispatcher, which picks the implementation by the device of the arguments.

Every operator has one schema. Its dense implementation, in plain PyTorch operations, serves every device and dtype. A
native implementation is registered for the CPU and one with Triton kernels for CUDA; another backend would be
registered in the same way under its own dispatch key. With SMOE_BACKEND=dense in the environment the dense
implementations are called without the dispatcher: compilers and exporters then see PyTorch's own operations and no
operator of this library. They are called so, too, where the functions of torch.func or forward-mode differentiation
are at work, which know the derivatives of PyTorch's own operations only.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

BACKEND_VARIABLE = "SMOE_BACKEND"

# Operators are defined by schema and not by torch.library.custom_op, whose Python wrapping takes as long as the kernel
# of a small layer.
_LIBRARY = torch.library.Library("smoe", "FRAGMENT")
_DENSE: dict[Callable[..., Any], Callable[..., Any]] = {}


def is_dense_only() -> bool:
    """Whether SMOE_BACKEND=dense is set in the environment."""
    return os.environ.get(BACKEND_VARIABLE) == "dense"


def has_transforms() -> bool:
    """Whether a transform of torch.func or forward-mode differentiation is active.

    They need PyTorch's own operations, and none in place.
    """
    if torch.compiler.is_compiling():
        return False
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def register_operator(
    schema: str,
    *,
    dense: Callable[..., Any],
    fake: Callable[..., Any],
    native: Callable[..., Any] | None = None,
    cuda: Callable[..., Any] | None = None,
    gradients: Callable[..., Any] | None = None,
    setup_context: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Defines `smoe::NAME` and registers its implementations.

    Args:
        schema: Schema of the operator, beginning with its name.
        dense: Implementation for every device and dtype.
        fake: Shapes, dtypes and strides of the results, for compilers and the meta device.
        native: Implementation for the CPU; it calls `dense` where it has no kernel.
        cuda: Implementation for CUDA; it calls `dense` where it has no kernel, and imports Triton when it runs.
        gradients: Backward formula; None if nothing is differentiated by the arguments of the operator.
        setup_context: Saves what `gradients` needs.

    Returns:
        The function to call: the operator, or `dense` itself if SMOE_BACKEND=dense is set.
    """
    name = schema.partition("(")[0]
    _LIBRARY.define(schema)
    operator = getattr(torch.ops.smoe, name).default
    _DENSE[operator] = dense
    if is_dense_only():
        # Programs that were exported with the operators can still be run.
        _LIBRARY.impl(name, dense, "CompositeImplicitAutograd")
        return dense
    _LIBRARY.impl(name, dense, "CompositeExplicitAutograd")
    if native is not None:
        _LIBRARY.impl(name, native, "CPU")
    if cuda is not None:
        _LIBRARY.impl(name, cuda, "CUDA")
    torch.library.register_fake(f"smoe::{name}", fake, lib=_LIBRARY)
    if gradients is not None:
        torch.library.register_autograd(f"smoe::{name}", gradients, setup_context=setup_context, lib=_LIBRARY)
    return operator


def call_operator(operator: Callable[..., Any], *arguments: Any) -> Any:
    """Calls an operator, or its dense implementation where transforms are active.

    Where no gradients are recorded, its backward formula is passed over.

    PyTorch calls the formula's wrapper, which is written in Python, even if no gradient is needed: it takes as long as
    the kernel of a small layer.

    Args:
        operator: What `register_operator` returned.
        *arguments: Arguments of the operator.
    """
    if has_transforms() and operator in _DENSE:
        return _DENSE[operator](*arguments)
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or is_dense_only():
        return operator(*arguments)
    with torch._C._AutoDispatchBelowAutograd():
        return operator(*arguments)


def plain_operators() -> dict[torch._ops.OperatorBase, Callable[..., Any]]:
    """The dense implementation of each operator, for `ExportedProgram.run_decompositions`.

    A program that was exported and decomposed so has PyTorch's own operations only: it runs without this library, and
    other runtimes can read it.
    """
    return dict(_DENSE)  # type: ignore[return-value]
