"""The routed convolution of a volume by the kernels of the plane, which see its slices as one tall image."""

from __future__ import annotations

import torch

from smoe.ops.native.library import Geometry, num_threads
from smoe.ops.routed_conv.native import NativeConvolution
from smoe.ops.routed_conv3d.dense import dense_routed_conv3d, dense_routed_conv3d_backward
from smoe.ops.routed_conv3d.grid import volume_grid, volume_padding


def volume_geometry(
    input: torch.Size, weight: torch.Size, batch: int, num_selected: int, stride: int, padding_mode: str
) -> Geometry:
    """Describes a convolution of volumes: `make_geometry` of `NativeConvolution`."""
    (_, C, D, H, W), (kernel_depth, kernel_height, kernel_width) = input, weight[2:]
    output_depth, output_height, output_width = volume_grid(input[2:], weight[2:], stride, padding_mode)
    wraps = int(padding_mode == "circular")
    return Geometry(
        *(batch, C, weight[0], num_selected),
        *(D * H, W, output_depth * output_height, output_width),
        *(kernel_depth * kernel_height, kernel_width, stride, wraps, wraps, num_threads().value),
        *(D, output_depth, kernel_depth, wraps),
        *volume_padding(weight[2:], padding_mode),
    )


VOLUMES = NativeConvolution(volume_grid, volume_geometry, dense_routed_conv3d, dense_routed_conv3d_backward)
