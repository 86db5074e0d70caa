"""Coarse gates: scores of cells, interpolated to pixels."""

from __future__ import annotations

import io
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


def test_starts() -> None:
    torch.manual_seed(0)
    uniform = CoarseGate(7, 3, GRID, init="uniform")
    assert torch.equal(uniform(None).indices[0], torch.tensor([0, 3, 5]).int()[:, None].expand(3, 70))
    random = CoarseGate(64, 8, (32, 32), init="kaiming").values.detach()
    assert 0.09 < 10.0 * float(random.std()) < 0.11
    smooth = CoarseGate(64, 8, (64, 64), init="smooth", correlation_length=4.0).values.detach()
    assert (smooth[:, 1:] - smooth[:, :-1]).std() < 0.4 * smooth.std()


def test_a_prior_decides_the_start() -> None:
    torch.manual_seed(0)
    groups = torch.zeros(8, 12, dtype=torch.int64)
    groups[:, 4:] = 1
    gate = CoarseGate.from_prior(groups, 4, 2, strength=20.0, factor=4)
    indices = gate(None).indices.view(2, 8, 12)
    for slot in range(2):
        assert torch.equal(indices[slot], 2 * slot + groups)


@pytest.mark.parametrize(
    ("order", "rule"),
    [("families", None), ("families", "rc"), ("score", None), ("score", "end_to_end"), ("families", "frozen")],
)
def test_layers_learn_with_a_coarse_gate(rule: str | None, order) -> None:
    torch.manual_seed(0)
    gate = CoarseGate(6, 2, GRID, order=order)
    layer = smoe.SpatialMoE2d.from_experts(3, 6, 2, gate=gate, rule=rule)
    nn.init.normal_(layer.weight)
    layer(torch.randn(2, 3, *GRID)).square().mean().backward()
    has_learned = gate.values.grad is not None and bool((gate.values.grad != 0.0).any())
    assert has_learned == (rule != "frozen")


def test_probing_is_refused_because_its_pixels_decide_alone() -> None:
    with pytest.raises(ValueError, match="it needs a TensorGate, got CoarseGate"):
        smoe.SpatialMoE2d.from_experts(1, 3, 1, gate=CoarseGate(3, 1, GRID, order="score"), rule="probe")


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


# The tracer of torch 2.13 instantiates autograd functions.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_it_is_saved_copied_compiled_exported_and_frozen() -> None:
    torch.manual_seed(0)
    layer, other = (smoe.SpatialMoE2d.from_experts(3, 6, 2, gate=CoarseGate(6, 2, GRID)) for _ in range(2))
    nn.init.normal_(layer.weight)
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file))
    input = torch.randn(2, 3, *GRID)
    expected = layer.eval()(input)
    assert torch.equal(other.eval()(input), expected)
    assert torch.equal(smoe.freeze(layer).eval()(input), expected)
    assert torch.equal(torch.export.export(layer, (input,)).module()(input), expected)
    compiled = torch.compile(layer.train(), backend="aot_eager")
    compiled(input).sum().backward()
    assert layer.gate.get_buffer("values").grad is not None
    assert "coarse_shape=(2, 3)" in repr(layer)
    assert smoe.describe(layer) is not None


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


def test_a_network_is_converted_with_coarse_gates() -> None:
    net = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 3, padding=1))
    input = torch.randn(1, 2, *GRID)
    converted = smoe.convert(net, example_input=input, make_gate=lambda X, E, grid: CoarseGate(X, E, grid))
    assert isinstance(converted.get_submodule("0.gate"), CoarseGate)
    assert converted(input).shape == (1, 2, *GRID)


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
