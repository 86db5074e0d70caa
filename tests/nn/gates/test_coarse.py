"""Coarse gates: scores of cells, interpolated to pixels."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import smoe
from smoe.nn._gates import CoarseGate

GRID = (7, 10)


def interpolated(values: torch.Tensor, size: int, *, wraps: bool) -> torch.Tensor:
    """The last axis of a field at `size` pixels, pixel by pixel."""
    cells = values.shape[-1]
    columns = []
    for pixel in range(size):
        centre = (pixel + 0.5) * cells / size - 0.5
        below = math.floor(centre)
        weight = centre - below
        pair = [index % cells if wraps else min(max(index, 0), cells - 1) for index in (below, below + 1)]
        columns.append((1.0 - weight) * values[..., pair[0]] + weight * values[..., pair[1]])
    return torch.stack(columns, dim=-1)


@pytest.mark.parametrize(
    ("grid", "options", "coarse", "wraps"),
    [
        ((7, 10), {"factor": 3}, (3, 4), (False, False)),
        ((7, 10), {"factor": 4, "wraps": (False, True)}, (2, 3), (False, True)),
        ((9,), {"coarse_shape": (2,), "wraps": True}, (2,), (True,)),
        ((3, 4, 5), {"factor": 2}, (2, 2, 3), (False,) * 3),
        ((5, 6), {"factor": 1}, (5, 6), (False, False)),
    ],
)
def test_scores_and_gradients_are_those_of_a_plain_definition(grid, options, coarse, wraps) -> None:
    torch.manual_seed(0)
    gate = CoarseGate(5, 2, grid, scale=4.0, dtype=torch.float64, **options)
    nn.init.normal_(gate.values)
    assert gate.coarse_shape == coarse
    assert gate.spatial_shape == grid
    values = gate.values.detach().clone().requires_grad_()
    expected = 4.0 * values
    for axis in range(len(grid)):
        moved = interpolated(expected.movedim(1 + axis, -1), grid[axis], wraps=wraps[axis])
        expected = moved.movedim(-1, 1 + axis)
    found = gate(None).scores
    torch.testing.assert_close(found, expected.flatten(1)[None])
    error = torch.randn_like(found)
    found.backward(error)
    expected.flatten(1)[None].backward(error)
    assert values.grad is not None
    torch.testing.assert_close(gate.values.grad, values.grad)


def test_a_layer_learns_regions_larger_than_a_cell() -> None:
    torch.manual_seed(0)
    grid, truth = (16, 24), torch.randn(2, 2, 3, 3, 3)
    layer = smoe.SpatialMoE2d.from_experts(3, 4, 2, gate=CoarseGate(4, 2, grid))
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-2)
    losses = []
    for _ in range(150):
        input = torch.randn(8, 3, *grid)
        target = torch.nn.functional.conv2d(input, truth[0], padding=1)
        target[..., 12:] = torch.nn.functional.conv2d(input, truth[1], padding=1)[..., 12:]
        loss = (layer(input) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    layer.eval()
    # A convolution reaches half of the variance of the differences, 13.5; the border cells mix both regions.
    assert losses[-1] < 0.15 * losses[0]
    left, right = (layer.routing().indices[:, :, part].flatten(1) for part in (slice(0, 10), slice(14, 24)))
    assert (left.mode().values != right.mode().values).all()


def test_another_grid_takes_the_same_scores() -> None:
    torch.manual_seed(0)
    layer = smoe.SpatialMoE2d.from_experts(3, 6, 2, gate=CoarseGate(6, 2, (8, 12)))
    larger = smoe.interpolate_grids(layer, example_input=torch.randn(1, 3, 16, 24))
    assert torch.equal(larger.gate.get_buffer("values"), layer.gate.get_buffer("values"))
    assert larger(torch.randn(1, 3, 16, 24)).shape == (1, 2, 16, 24)
    new = larger.routing().indices[:, 1::2, 1::2]
    assert (new == layer.routing().indices).float().mean() > 0.8


def test_a_gate_for_other_nodes_becomes_a_table() -> None:
    torch.manual_seed(0)
    gate = CoarseGate(6, 2, (8, 12))
    rows, columns = torch.meshgrid(torch.arange(8.0), torch.arange(12.0), indexing="ij")
    places = torch.stack([rows, columns], dim=-1)
    moved = smoe.transfer_gate(gate, places, places.flatten(0, 1)[[5, 40, 90]])
    assert isinstance(moved, smoe.TensorGate)
    assert moved.order == "families"
    torch.testing.assert_close(moved.scores, gate(None).scores[0][:, [5, 40, 90]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"factor": 0}, "factor must be at least 1, got 0"),
        (
            {"coarse_shape": (9, 2)},
            r"coarse_shape must be at most spatial_shape \(7, 10\) along each axis, got \(9, 2\)",
        ),
        ({"coarse_shape": (2,)}, "coarse_shape must be at most"),
        ({"wraps": (True,)}, r"wraps must be one answer or 2, one for each axis, got \(True,\)"),
        ({"scale": 0.0}, "scale must be positive and finite, got 0.0"),
        ({"init": "paper"}, "init must be one of uniform, kaiming, smooth, got 'paper'"),
        ({"correlation_length": 2.0}, "correlation_length belongs to init='smooth'"),
    ],
)
def test_wrong_numbers_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CoarseGate(4, 2, GRID, **options)
    gate = CoarseGate(4, 2, GRID)
    with pytest.raises(ValueError, match="the gate has 2 axes"):
        gate.change_grid((3,))
