"""Calls every family of kernels, in every build, beside float64: what the tests of planes and of volumes share."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
import torch

from smoe.ops._conv_kernels import NativeConvolution
from smoe.ops._operators import NativeLibrary, _library_file, why_not

DIRECTIONS = ("forward", "input_gradient", "weight_gradient")


def open_build(instruction_set: str) -> NativeLibrary:
    """The kernels of one instruction set; skips the test where they cannot run."""
    reason = why_not(instruction_set)
    if reason is not None:
        pytest.skip(reason)
    return NativeLibrary(instruction_set, ctypes.CDLL(str(_library_file(instruction_set))))


def check_kernels(
    convolution: NativeConvolution,
    dense: Callable[..., torch.Tensor],
    library: NativeLibrary,
    family: str,
    case: object,
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    options: tuple[int, str],
    num_threads: tuple[int, int],
) -> None:
    """Compares output and gradients of a family of kernels with those of float64, for two numbers of threads.

    Args:
        convolution: Planes or volumes.
        dense: The definition.
        library: Build of the kernels.
        family: Family of kernels, also where it would not be chosen.
        case: What is printed if a comparison fails.
        tensors: Input, weight and routing `(1, E, P)`.
        options: Stride and padding mode.
        num_threads: Numbers of threads, whose results must be equal bit by bit.
    """
    input, weight, indices = tensors
    indices = indices.contiguous()
    exact_input, exact_weight = input.double().requires_grad_(), weight.double().requires_grad_()
    output = dense(exact_input, exact_weight, indices, 1, *options)
    error = torch.randn(output.shape)
    output.backward(error.double())
    expected = {"forward": output.detach(), "input_gradient": exact_input.grad, "weight_gradient": exact_weight.grad}
    arguments = {"forward": (input, weight), "input_gradient": (error, weight), "weight_gradient": (input, error)}
    geometry = convolution.problem(library, input, weight, indices, 1, *options).geometry
    for direction in DIRECTIONS:
        truth = expected[direction]
        assert truth is not None
        results = []
        for threads in num_threads:
            geometry.threads = threads
            # Prefilled with NaN, so that an element nobody writes shows.
            result = torch.full(truth.shape, torch.nan)
            library.call(f"{family}_{direction}", ctypes.byref(geometry), *arguments[direction], indices, result)
            results.append(result)
        assert torch.equal(*results), f"{direction} of {case} depends on the number of threads"
        scale = float(truth.abs().max().clamp_min(1e-30))
        difference = float((results[0].double() - truth).abs().max()) / scale
        assert difference < 1e-5, f"{direction} of {case}: relative difference {difference}"
