"""Gates that look at their input (convolutional, CoordConv, locally connected, linear), and gates of a user's own."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch

import smoe
from smoe.options import Order
from smoe.rules import RoutingClassification
from smoe_paper.baselines.gates import ConvGate, CoordConv3Gate, CoordConvGate, LinearGate, LocallyConnectedGate

RC = RoutingClassification.released()

GRID = (5, 6)
MAKERS: dict[str, Callable[[int], smoe.SpatialGate]] = {
    "conv": lambda stride: ConvGate(2, 4, 2, stride=stride),
    "coord_conv": lambda stride: CoordConvGate(2, 4, 2, (3, 5), stride=stride, padding_mode="longitude"),
    "coord_conv_3": lambda stride: CoordConv3Gate(2, 4, 2, stride=stride),
    "locally_connected": lambda stride: LocallyConnectedGate(2, 4, 2, output(stride), stride=stride),
    "linear": lambda stride: LinearGate(2, 4, 2, output(stride), input_shape=GRID),
}


def output(stride: int) -> tuple[int, int]:
    return math.ceil(GRID[0] / stride), math.ceil(GRID[1] / stride)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("name", MAKERS)
def test_each_gate_routes_every_sample_and_learns(name, stride):
    torch.manual_seed(0)
    gate = MAKERS[name](stride)
    layer = smoe.SpatialMoE2d.from_experts(2, 4, 2, gate=gate, stride=stride, rule=RC)
    x = torch.randn(3, 2, *GRID)
    assert layer(x).shape == (3, 2, *output(stride))
    assert layer.routing(x).indices.shape == (3, 2, *output(stride))
    before = copy.deepcopy(dict(gate.named_parameters()))
    optimizer = torch.optim.SGD(layer.parameters(), lr=10.0)
    layer(x).pow(2).mean().backward()
    optimizer.step()
    for parameter_name, parameter in gate.named_parameters():
        assert not torch.equal(parameter, before[parameter_name]), parameter_name


@pytest.mark.parametrize(
    ("gate", "expected"),
    [
        (ConvGate(1, 3, 1), 27),
        # (1 + 2 coordinates) x 3 x 9
        (CoordConvGate(1, 3, 1), 81),
        # 81 + batch norm 6 + 3 x 3 x 9 + 6 + 81
        (CoordConv3Gate(1, 3, 1), 255),
        # 3 x 9 weights at each of 64 x 64 pixels
        (LocallyConnectedGate(1, 3, 1, (64, 64)), 110592),
        # On 64 x 64 it would have 4096 x 3 x 4096, 50 million.
        (LinearGate(1, 3, 1, (4, 5)), 20 * 3 * 20),
    ],
)
def test_parameters_on_the_heat_grid(gate, expected):
    assert sum(parameter.numel() for parameter in gate.parameters()) == expected


def test_linear_gate_works_on_one_grid_only():
    gate = LinearGate(1, 3, 1, (4, 5))
    with pytest.raises(ValueError, match=r"made for an input grid of \(4, 5\), got \(5, 4\)"):
        gate(torch.randn(2, 1, 5, 4))


class _Rows(smoe.SpatialGate):
    def __init__(self, order: Order = "families") -> None:
        super().__init__(4, 2, order=order)
        self.rows = torch.nn.Parameter(torch.randn(4, 5))

    def raw_scores(self, input: torch.Tensor | None) -> torch.Tensor:
        return self.rows[:, :, None].expand(-1, -1, 7)


@pytest.mark.parametrize(("rule", "order"), [(None, "families"), (None, "score"), ("rc", "index")])
def test_a_gate_of_ones_own_only_defines_scores(rule: str | None, order: Order):
    torch.manual_seed(0)
    layer = smoe.SpatialMoE2d.from_experts(1, 4, 2, gate=_Rows(order), rule=rule)
    assert layer.gate.spatial_shape == (5, 7)
    assert layer.routing().indices.shape == (2, 5, 7)
    layer(torch.randn(3, 1, 5, 7)).square().mean().backward()
    (report,) = smoe.describe(layer).gates
    assert report.grid == (5, 7) and report.num_used == 4
    with pytest.raises(ValueError, match="5, 7"):
        layer(torch.randn(3, 1, 5, 8))


def test_scores_of_another_shape_are_refused():
    class PerSample(_Rows):
        def raw_scores(self, input: torch.Tensor | None) -> torch.Tensor:
            return super().raw_scores(input)[None]

    class LooksAtInput(_Rows):
        looks_at_input = True

    input = torch.randn(1, 1, 5, 7)
    with pytest.raises(ValueError, match=r"PerSample has looks_at_input=False: .* return \(4, \*grid\), got \(1, 4, 5"):
        PerSample()(input)
    with pytest.raises(ValueError, match=r"LooksAtInput has .*=True: .* return \(B, 4, \*grid\), got \(4, 5, 7\)"):
        LooksAtInput()(input)
