"""The layers on lines and in volumes: their definitions in loops, rules, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smoe
from definitions import compare_gradients, gate_gradient, gate_scores
from routed_conv_cases import loop_routed_conv
from smoe.nn._graph_layer import GraphMoE
from smoe.nn._grid_layers import SpatialMoE1d, SpatialMoE3d
from smoe.ops._routed_conv import routed_conv


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("kernel_size", "stride", "expert_channels", "padding_mode"),
    [
        *[((3,), 1, 1, "zeros"), ((5,), 2, 2, "circular"), ((1,), 1, 1, "circular")],
        *[((3, 3, 3), 1, 1, "circular"), ((1, 5, 3), 1, 2, "zeros"), ((5, 1, 1), 1, 1, "circular")],
        *[((3, 3, 3), 2, 1, "zeros"), ((3, 1, 5), 3, 2, "circular"), ((3, 1, 5), 3, 2, "zeros")],
    ],
)
def test_every_gradient_is_that_of_the_loops(dtype, kernel_size, stride, expert_channels, padding_mode):
    kind, sizes = (SpatialMoE1d, (11,)) if len(kernel_size) == 1 else (SpatialMoE3d, (4, 3, 5))
    grid = tuple(-(-size // stride) for size in sizes)
    options = {"stride": stride, "padding_mode": padding_mode, "expert_channels": expert_channels}
    layer = kind.from_experts(
        2, 5, 2, kernel_size, spatial_shape=grid, rule="frozen", order="score", dtype=dtype, **options
    )
    x = torch.randn(2, 2, *sizes, dtype=dtype, requires_grad=True)
    indices = layer.routing().indices
    assert indices.shape == (2, *grid)
    expected = loop_routed_conv(x, layer.weight, indices.flatten(1)[None], expert_channels, stride, padding_mode)
    compare_gradients(layer(x), expected, [x, layer.weight], 1e-10 if dtype == torch.float64 else 1e-4)


@pytest.mark.parametrize("padding_mode", ["zeros", "circular"])
def test_volume_with_a_routing_of_each_sample(padding_mode):
    x = torch.randn(3, 2, 3, 4, 5, requires_grad=True)
    weight = torch.randn(4, 2, 3, 3, 3, requires_grad=True)
    indices = torch.randn(3, 4, 60).argsort(dim=1)[:, :2]
    expected = loop_routed_conv(x, weight, indices, 1, 1, padding_mode)
    compare_gradients(routed_conv(x, weight, indices, 1, 1, padding_mode), expected, [x, weight], 1e-4)


def test_volume_operator():
    x = torch.randn(2, 2, 3, 4, 5, requires_grad=True)
    weight = torch.randn(4, 2, 3, 3, 3, requires_grad=True)
    indices = torch.randn(1, 4, 60).argsort(dim=1)[:, :2].int()
    torch.library.opcheck(torch.ops.smoe.routed_conv3d.default, (x, weight, indices, 1, 1, "zeros", None))
    inner = torch.randn(1, 4, 3).argsort(dim=1)[:, :2].int()
    torch.library.opcheck(torch.ops.smoe.routed_conv3d.default, (x, weight, inner[..., :2], 1, 2, "none", None))


@pytest.mark.parametrize("rule", ["rc", "straight_through(noise=0.0)", "end_to_end", "frozen"])
@pytest.mark.parametrize("kind", ["line", "volume", "graph"])
def test_rules_train_as_in_the_plane(kind, rule):
    """A line is a plane of one row, a volume of one slice is a plane, a graph without edges has kernels of size 1."""
    order = "families" if rule.startswith("straight") else "score"
    grid, kernel = {"line": ((1, 12), (1, 3)), "volume": ((3, 4), (3, 3)), "graph": ((3, 4), (1, 1))}[kind]
    own_kind, own_grid, own_kernel = {
        "line": (SpatialMoE1d, (12,), [3]),
        "volume": (SpatialMoE3d, (1, 3, 4), [(1, 3, 3)]),
        "graph": (GraphMoE, (12,), []),
    }[kind]
    options = {"rule": rule, "bias": True}
    plane = smoe.SpatialMoE2d.from_experts(2, 7, 2, kernel, gate=smoe.TensorGate(7, 2, grid, order=order), **options)
    own_gate = smoe.TensorGate(7, 2, own_grid, order=order)
    layer = own_kind.from_experts(2, 7, 2, *own_kernel, gate=own_gate, **options)
    torch.nn.init.normal_(plane.weight)
    with torch.no_grad():
        filters = layer.weight[:, :2] if kind == "graph" else layer.weight
        filters.copy_(plane.weight.view_as(filters))
        gate_scores(layer).copy_(gate_scores(plane).view_as(gate_scores(layer)))
    x, no_edges = torch.randn(8, 2, *grid), torch.zeros(2, 0, dtype=torch.int64)
    for _ in range(2):
        layer.zero_grad()
        plane.zero_grad()
        expected = plane(x)
        if kind == "graph":
            output = layer(x.flatten(2).transpose(1, 2), no_edges).transpose(1, 2)
        else:
            output = layer(x.view(8, 2, *own_grid))
        output = output.reshape(expected.shape)
        torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-5)
        for each in (output, expected):
            F.mse_loss(each, torch.ones_like(each)).backward()
    assert layer.weight.grad is not None and plane.weight.grad is not None
    own = layer.weight.grad[:, :2] if kind == "graph" else layer.weight.grad
    torch.testing.assert_close(own.reshape(plane.weight.shape), plane.weight.grad, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(gate_scores(layer).view_as(gate_scores(plane)), gate_scores(plane))
    if gate_scores(plane).grad is not None:
        gradient = gate_gradient(layer).view_as(gate_scores(plane))
        torch.testing.assert_close(gradient, gate_gradient(plane), rtol=1e-3, atol=1e-5)
        assert rule == "frozen" or gradient.abs().sum() > 0


@pytest.mark.parametrize(
    ("kind", "options", "shape", "message"),
    [
        (
            SpatialMoE1d,
            {"padding_mode": "longitude"},
            (),
            "one of zeros, circular, reflect, replicate, got 'longitude'",
        ),
        (
            SpatialMoE1d,
            {"gate": smoe.TensorGate(3, 1, (2, 3))},
            (),
            r"needs a gate for 1 axes, got one for the .* \(2, 3\)",
        ),
        (SpatialMoE1d, {}, (2, 3, 8), r"input must be \(B, 1, length\), .* got shape \(2, 3, 8\)"),
        (SpatialMoE3d, {"stride": 0}, (), "stride must be"),
        (SpatialMoE3d, {}, (1, 4, 4), r"input must be \(B, 1, depth, rows, columns\), .* got shape \(1, 4, 4\)"),
        (SpatialMoE3d, {}, (1, 1, 2, 2, 3), r"grid of \(2, 2, 2\), got an input of \(2, 2, 3\).*interpolate_grids"),
    ],
)
def test_bad_arguments(kind: Any, options: dict[str, Any], shape: tuple[int, ...], message: str) -> None:
    grid = {} if "gate" in options else {"spatial_shape": 8 if kind is SpatialMoE1d else (2, 2, 2)}
    with pytest.raises(ValueError, match=message):
        kind.from_experts(1, 3, 1, **grid, **options)(torch.randn(shape))


@pytest.mark.parametrize("padding_mode", ["zeros", "circular", "none"])
def test_gradients_of_volumes_have_derivatives(padding_mode):
    torch.manual_seed(0)
    x = torch.randn(2, 2, 3, 3, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 2, 1, 3, 3, dtype=torch.float64, requires_grad=True)
    num_voxels = 6 if padding_mode == "none" else 36
    indices = torch.rand(1, 3, num_voxels).argsort(dim=1)[:, :2].to(torch.int32)
    assert torch.autograd.gradgradcheck(
        lambda x, weight: routed_conv(x, weight, indices, 1, 1, padding_mode), (x, weight)
    )


@pytest.mark.parametrize(
    ("kind", "conv_kind", "grid"), [(SpatialMoE1d, nn.Conv1d, (9,)), (SpatialMoE3d, nn.Conv3d, (4, 5, 3))]
)
def test_lines_and_volumes_are_called_like_convolutions(kind, conv_kind, grid):
    conv = conv_kind(2, 4, 3, padding=1)
    layer = kind.from_conv(conv, spatial_shape=grid)
    x = torch.randn(3, 2, *grid)
    for is_training in (True, False):
        torch.testing.assert_close(layer.train(is_training)(x), conv(x))
    torch.testing.assert_close(layer(x[0]), conv(x[0]))
    for name in ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "output_padding"):
        assert getattr(layer, name) == getattr(conv, name)
    assert kind(2, 5, spatial_shape=grid)(x).shape == (3, 5, *grid)
