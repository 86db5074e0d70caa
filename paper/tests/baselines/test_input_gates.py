"""Gates that look at their input (convolutional, CoordConv, locally connected, linear), and gates of a user's own."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch

import smoe
from smoe.options import Order
from smoe.rules import RoutingClassification
from smoe_paper.baselines.layers import ConvGate, CoordConv3Gate, CoordConvGate, LinearGate, LocallyConnectedGate
from smoe_paper.baselines.routing_losses import Normalisation, ScoreGate

RC = RoutingClassification.released()

GRID = (5, 6)
MAKERS: dict[str, Callable[[], smoe.SpatialGate]] = {
    "conv": lambda: ConvGate(2, 4, 2),
    "coord_conv": lambda: CoordConvGate(2, 4, 2),
    "coord_conv_3": lambda: CoordConv3Gate(2, 4, 2),
    "locally_connected": lambda: LocallyConnectedGate(2, 4, 2, GRID),
    "linear": lambda: LinearGate(2, 4, 2, GRID),
}


@pytest.mark.parametrize("name", MAKERS)
def test_each_gate_routes_every_sample_and_learns(name):
    torch.manual_seed(0)
    gate = MAKERS[name]()
    layer = smoe.SpatialMoE2d.from_experts(2, 4, 2, gate=gate, rule=RC)
    x = torch.randn(3, 2, *GRID)
    assert layer(x).shape == (3, 2, *GRID)
    assert layer.routing(x).indices.shape == (3, 2, *GRID)
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
    with pytest.raises(ValueError, match=r"output grid of \(4, 5\), .* but an input of \(5, 4\)"):
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


X = torch.zeros(2000, 1, 3, 3)


def test_noise_of_each_sample_while_training():
    torch.manual_seed(0)
    inner = smoe.TensorGate(4, 1, (3, 3))
    gate = ScoreGate(inner)
    routing = gate(X)
    assert routing.scores.shape == (2000, 4, 9) and routing.indices.shape == (2000, 1, 9)
    assert gate.last is not None
    clean, noisy, std = gate.last
    assert torch.equal(clean, inner.scores.flatten(1)[None]) and std == 0.25
    noise = (noisy - clean).detach()
    assert float(noise.mean()) == pytest.approx(0.0, abs=0.005)
    assert float(noise.std()) == pytest.approx(0.25, rel=0.02)
    assert float(noise.std(dim=0).min()) > 0.22
    looking = ScoreGate(ConvGate(1, 4, 1), std=2.0)
    looking(X)
    assert looking.last is not None
    assert float((looking.last[1] - looking.last[0]).detach().std()) == pytest.approx(2.0, rel=0.02)
    with pytest.raises(ValueError, match="looks at its input"):
        looking()


def test_silent_in_evaluation():
    inner = smoe.TensorGate(4, 2, (3, 3))
    gate = ScoreGate(inner, normalisation="softmax")
    layer = smoe.SpatialMoE2d.from_experts(1, 4, 2, gate=gate, rule="rc").eval()
    assert torch.equal(gate(X).scores, inner().scores.softmax(dim=1))
    x = torch.randn(2, 1, 3, 3)
    assert torch.equal(layer(x), layer(x))
    assert layer.routing(x).indices.shape == (2, 3, 3)


def test_training_routes_samples_apart_and_trains_the_inner_gate():
    torch.manual_seed(0)
    inner = smoe.TensorGate(4, 2, (3, 3))
    layer = smoe.SpatialMoE2d.from_experts(1, 4, 2, gate=ScoreGate(inner, std=5.0), rule="rc")
    x = torch.randn(8, 1, 3, 3)
    indices = layer.routing(x).indices
    assert indices.shape == (8, 2, 3, 3) and not torch.equal(indices[0], indices[1])
    layer(x).pow(2).mean().backward()
    assert inner.scores.grad is not None and inner.scores.grad.abs().max() > 0
    assert [name for name, _ in layer.named_parameters()] == ["weight", "gate.gate.scores"]
    with pytest.raises(ValueError, match="nor adds noise, got a ScoreGate"):
        layer.rule = "straight_through"


@pytest.mark.parametrize(
    ("normalisation", "expected"),
    [
        ("none", [-2.0, 1.0, 0.0]),
        ("abs", [2.0, 1.0, 0.0]),
        # exp(-2), e and 1 over their sum 3.8536
        ("softmax", [0.0351, 0.7054, 0.2595]),
        # exp(2), e and 1 over their sum 11.1073
        ("abs_softmax", [0.6652, 0.2447, 0.0900]),
    ],
)
def test_routing_and_weights_use_the_normalised_scores(normalisation: Normalisation, expected: list[float]):
    inner = smoe.FixedGate(torch.tensor([-2.0, 1.0, 0.0]).reshape(3, 1, 1), 1)
    gate = ScoreGate(inner, 0.0, normalisation)
    torch.testing.assert_close(gate(None).scores.flatten(), torch.tensor(expected), atol=1e-4, rtol=0.0)
    layer = smoe.SpatialMoE2d.from_experts(1, 3, 1, 1, gate=gate, weighted=True, rule="frozen", bias=False)
    with torch.no_grad():
        layer.weight.fill_(1.0)
    # An absolute value lets the strongly negative expert 0 win.
    favourite = 0 if "abs" in normalisation else 1
    assert layer.routing().indices.item() == favourite
    assert layer(torch.ones(1, 1, 1, 1)).item() == pytest.approx(expected[favourite], abs=1e-4)


def test_wrong_arguments():
    gate = smoe.TensorGate(4, 2, (3, 3))
    for bad, std in ((gate, -1.0), (ScoreGate(gate), None)):
        with pytest.raises(ValueError, match="needs a gate of another kind and a std of at least 0"):
            ScoreGate(bad, std=std)
    with pytest.raises(ValueError, match="none, softmax, abs, abs_softmax, got 'sigmoid'"):
        ScoreGate(gate, normalisation="sigmoid")  # type: ignore[arg-type]
