"""The routed convolution of a volume on a CPU: the C++ kernels of the plane, dense where there is none."""

from __future__ import annotations

from typing import Any

import torch

from smoe.ops.native.library import library_for
from smoe.ops.routed_conv.native import native_routed_conv2d, native_routed_conv2d_backward
from smoe.ops.routed_conv3d.dense import dense_routed_conv3d, dense_routed_conv3d_backward
from smoe.ops.routed_conv3d.slabs import PlaneConvolution, slab_routed_conv3d, slab_routed_conv3d_backward

_PLANE = PlaneConvolution(native_routed_conv2d, native_routed_conv2d_backward)


def native_routed_conv3d(input: torch.Tensor, weight: torch.Tensor, *others: Any) -> torch.Tensor:
    """The output on a CPU; arguments as the operator's."""
    if library_for(input, weight) is None:
        return dense_routed_conv3d(input, weight, *others)
    return slab_routed_conv3d(input, weight, *others, plane=_PLANE)


def native_routed_conv3d_backward(
    error: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, *others: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of input and weight on a CPU; arguments as the operator's."""
    if library_for(error, input, weight) is None:
        return dense_routed_conv3d_backward(error, input, weight, *others)
    return slab_routed_conv3d_backward(error, input, weight, *others, plane=_PLANE)
