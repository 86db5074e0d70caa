"""The plan of a routing that does not change, which the kernels make once and keep."""

from __future__ import annotations

import ctypes
import weakref

import torch

from smoe.ops.native.library import Geometry, NativeLibrary, library_for, num_threads
from smoe.ops.routed_conv.choices import check_choices
from smoe.ops.routed_conv.native import LIST, Problem, fold_routing


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
        *(kernel_depth * kernel_height, kernel_width, stride, 0, 0, num_threads().value),
        *(depth * stride, depth, kernel_depth, 0, 0, 0, 0),
    )
    problem = Problem(library, geometry, fold_routing(library, indices, expert_channels))
    return HeldPlan(problem) if problem.family("forward") == LIST else None
