from __future__ import annotations

import math
from functools import partial

import pytest
import torch

from routed_conv_cases import assert_near
from smoe.ops._conv_kernels import Implementation, dense_routed_conv2d, dense_routed_conv2d_backward
from smoe.ops._gather import gather_experts
from smoe.ops._routed_conv3d import slab_routed_conv3d, slab_routed_conv3d_backward, slab_shape
from smoe.ops.triton.tiles import Tile

TILE = Tile(16, 16, 16, num_warps=2, num_stages=2)
BATCH, CHANNELS, EXPERTS, SELECTED, GRID = 2, 3, 5, 2, (3, 2, 2)


def define(
    input: torch.Tensor, weight: torch.Tensor, indices: torch.Tensor, padding_mode: str, expert_channels: int
) -> torch.Tensor:
    """All filters at all voxels, tap by tap, then the selected ones."""
    depth, rows, columns = input.shape[2:]
    outputs = input.new_zeros(len(input), len(weight), depth, rows, columns)
    kernel = weight.shape[2:]
    for tap in torch.ones(kernel).nonzero().tolist():
        shifts = [offset - size // 2 for offset, size in zip(tap, kernel, strict=True)]
        moved = input.roll([-shift for shift in shifts], (2, 3, 4))
        if padding_mode == "zeros":
            places = torch.meshgrid(*(torch.arange(size) for size in (depth, rows, columns)), indexing="ij")
            for place, shift, size in zip(places, shifts, (depth, rows, columns), strict=True):
                moved = moved * ((place + shift >= 0) & (place + shift < size))
        outputs = outputs + torch.einsum("bcdhw,oc->bodhw", moved, weight[:, :, tap[0], tap[1], tap[2]])
    return gather_experts(outputs, indices, expert_channels)


def compare_with_definition(
    plane: Implementation,
    device: torch.device,
    padding_mode: str,
    *,
    kernel: tuple[int, int, int] = (3, 3, 1),
    expert_channels: int = 1,
    dtype: torch.dtype = torch.float32,
) -> None:
    input = torch.randn(BATCH, CHANNELS, *GRID, device=device, dtype=dtype)
    weight = torch.randn(EXPERTS * expert_channels, CHANNELS, *kernel, device=device, dtype=dtype)
    indices = torch.rand(1, EXPERTS, math.prod(GRID), device=device).argsort(dim=1)[:, :SELECTED].int()
    error = torch.randn(BATCH, SELECTED * expert_channels, *GRID, device=device, dtype=dtype)
    with torch.backends.cudnn.flags(allow_tf32=False):
        output = slab_routed_conv3d(input, weight, indices, expert_channels, padding_mode, plane)
        gradients = slab_routed_conv3d_backward(
            *(error, input, weight, indices, expert_channels, padding_mode),
            needs_input=True,
            needs_weight=True,
            plane=plane,
        )
    exact_input, exact_weight = (tensor.cpu().double().requires_grad_() for tensor in (input, weight))
    expected = define(exact_input, exact_weight, indices.cpu(), padding_mode, expert_channels)
    truth = (expected.detach(), *torch.autograd.grad(expected, (exact_input, exact_weight), error.cpu().double()))
    names = ("output", "input gradient", "weight gradient")
    for name, actual, exact in zip(names, (output, *gradients), truth, strict=True):
        assert actual.is_contiguous()
        assert_near(name, actual.float(), exact)


@pytest.mark.parametrize(("padding_mode", "slab_bytes"), [("zeros", 1), ("circular", 1 << 20)])
def test_volume_by_the_kernels_of_the_plane(padding_mode, slab_bytes, device, monkeypatch):
    from smoe.ops.triton.routed_conv import triton_routed_conv2d, triton_routed_conv2d_backward

    monkeypatch.setattr("smoe.ops._routed_conv3d._SLAB_BYTES", slab_bytes)
    plane = Implementation(partial(triton_routed_conv2d, tile=TILE), partial(triton_routed_conv2d_backward, tile=TILE))
    compare_with_definition(plane, device, padding_mode)


@pytest.mark.parametrize("kernel", [(1, 3, 3), (3, 1, 5), (5, 5, 3)])
@pytest.mark.parametrize("slab_bytes", [1, 1500, 1 << 20])
@pytest.mark.parametrize("padding_mode", ["zeros", "circular"])
def test_slabs_of_any_size(padding_mode, slab_bytes, kernel, monkeypatch):
    # By the dense implementation of the plane: what is looked at is how a volume becomes planes.
    monkeypatch.setattr("smoe.ops._routed_conv3d._SLAB_BYTES", slab_bytes)
    plane = Implementation(dense_routed_conv2d, dense_routed_conv2d_backward)
    cpu = torch.device("cpu")
    compare_with_definition(plane, cpu, padding_mode, kernel=kernel, expert_channels=2, dtype=torch.float64)


def test_shape_of_a_slab():
    def meta(*shape: int) -> torch.Tensor:
        return torch.empty(shape, device="meta")

    input, weight, indices = meta(64, 16, 4, 8, 9), meta(96, 16, 5, 3, 3), meta(1, 24, 288)
    shape = slab_shape(input, weight, indices, 2, "circular")
    # One slab: depth taps are channels, and each of the four slices has a wrapped row above and below.
    assert (shape.batch, shape.channels, shape.num_experts, shape.num_selected) == (64, 80, 48, 24)
    assert shape.grid == (40, 9) and shape.output_pixels == 360 and shape.kernel == (3, 3) and shape.is_shared
    assert slab_shape(input, weight, indices, 2, "zeros").grid == (36, 9)
