from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import smoe
from definitions import gate_scores, layer_gradients, loop_top_experts
from smoe.ops import output_grid
from smoe.rules import RoutingClassification
from smoe_paper.baselines.gates import ConvGate

RC = RoutingClassification.released()


def test_shapes():
    layer = smoe.SpatialMoE2d(3, 4, 2, 5, expert_channels=2, spatial_shape=(6, 7), order="score", rule="rc")
    assert layer.weight.shape == (8, 3, 5, 5)
    assert {name for name, _ in layer.named_parameters()} == {"weight", "gate.scores"}
    assert isinstance(layer.gate, smoe.TensorGate)
    assert gate_scores(layer).shape == (4, 6, 7)
    assert layer(torch.randn(2, 3, 6, 7)).shape == (2, 4, 6, 7)
    routing = layer.routing()
    assert routing.indices.shape == routing.weights.shape == (2, 6, 7)
    assert layer.routing(torch.randn(2, 3, 6, 7)).indices.shape == (2, 6, 7)
    assert (layer.weighted, layer.order, layer.stride, layer.padding_mode) == (False, "score", 1, "zeros")


def test_routing_of_a_gate_that_looks_at_its_input():
    layer = smoe.SpatialMoE2d(1, 3, 2, gate=ConvGate(1, 3, 2), rule="rc")
    x = torch.randn(4, 1, 5, 5)
    assert layer.routing(x).indices.shape == (4, 2, 5, 5)
    with pytest.raises(ValueError, match="ConvGate looks at its input"):
        layer.routing()


@pytest.mark.parametrize("order", ["score", "index"])
def test_output_channels_follow_the_order(order):
    layer = smoe.SpatialMoE2d(1, 4, 3, 1, spatial_shape=(3, 3), order=order, rule="rc")
    with torch.no_grad():
        layer.weight.copy_(torch.arange(4.0).reshape(4, 1, 1, 1))
    output = layer(torch.ones(1, 1, 3, 3))
    expected = loop_top_experts(gate_scores(layer).flatten(1)[None], 3, order)[0].long().unflatten(1, (3, 3))
    assert torch.equal(output[0].long(), expected)
    assert torch.equal(layer.routing().indices, expected)


def test_weighted_output_is_multiplied_by_the_scores():
    layer = smoe.SpatialMoE2d(
        1, 4, 2, 1, expert_channels=2, spatial_shape=(3, 3), weighted=True, order="score", rule=RC
    )
    with torch.no_grad():
        layer.weight.fill_(1.0)
    weights = layer.routing().weights
    output = layer(torch.full((1, 1, 3, 3), 2.0))
    torch.testing.assert_close(output[0], 2 * weights.repeat_interleave(2, dim=0))
    assert torch.equal(output, layer.eval()(torch.full((1, 1, 3, 3), 2.0)))


@pytest.mark.parametrize("weighted", [False, True])
def test_evaluation_computes_the_same_and_damps_nothing(weighted):
    layer = smoe.SpatialMoE2d(2, 4, 2, spatial_shape=(4, 5), weighted=weighted, order="score", rule=RC).double()
    x, target = torch.randn(2, 2, 4, 5, dtype=torch.float64), torch.randn(2, 2, 4, 5, dtype=torch.float64)
    trained = layer_gradients(layer, x, target)
    evaluated = layer_gradients(layer.eval(), x, target)
    layer.train()
    layer.rule = "end_to_end"
    plain = layer_gradients(layer, x, target)
    assert torch.equal(trained["output"], evaluated["output"])
    for name in ("input.grad", "weight.grad") + (("gate.scores.grad",) if weighted else ()):
        torch.testing.assert_close(evaluated[name], plain[name], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(trained["weight.grad"], plain["weight.grad"])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("expert_channels", [1, 2])
@pytest.mark.parametrize("stride", [1, 2])
def test_gradcheck_weighted(stride, expert_channels, training):
    torch.manual_seed(1)
    layer = smoe.SpatialMoE2d(
        2,
        3,
        2,
        expert_channels=expert_channels,
        stride=stride,
        spatial_shape=output_grid(3, 4, stride),
        weighted=True,
        order="score",
        rule="end_to_end",
        dtype=torch.float64,
    ).train(training)

    def output(x: torch.Tensor, weight: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(layer, {"weight": weight, "gate.scores": scores}, (x,))

    x = torch.randn(2, 2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(output, (x, layer.weight, gate_scores(layer)))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("rule", ["end_to_end", "frozen"])
def test_gradcheck_unweighted(rule, training):
    gate = smoe.FixedGate.random(3, 2, (3, 4))
    layer = smoe.SpatialMoE2d(2, 3, 2, gate=gate, padding_mode="longitude", rule=rule).double()
    layer.train(training)

    def output(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(layer, {"weight": weight}, (x,))

    x = torch.randn(2, 2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(output, (x, layer.weight))


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((1, 3, 5), {"spatial_shape": (4, 4)}, r"num_selected must be in \[1, 3\], got 5"),
        ((1, 3, 0), {"spatial_shape": (4, 4)}, r"num_selected must be in \[1, 3\], got 0"),
        ((1, 0, 1), {"spatial_shape": (4, 4)}, "num_experts must be at least 1, got 0"),
        ((0, 3, 1), {"spatial_shape": (4, 4)}, "in_channels must be at least 1, got 0"),
        ((1, 3, 1, 2), {"spatial_shape": (4, 4)}, "kernel_size must be odd.* got 2"),
        ((1, 3, 1, (3, 4)), {"spatial_shape": (4, 4)}, r"kernel_size must be odd.* got \(3, 4\)"),
        ((1, 3, 1, (3, 3, 3)), {"spatial_shape": (4, 4)}, r"one number or \(rows, columns\), got \(3, 3, 3\)"),
        ((1, 3, 1), {"spatial_shape": (4, 4), "stride": 0}, "stride must be at least 1, got 0"),
        ((1, 3, 1), {"spatial_shape": (4, 4), "expert_channels": 0}, "expert_channels must be at least 1, got 0"),
        ((1, 3, 1), {"spatial_shape": (4, 0)}, r"\(rows, columns\) of the output grid, not \(4, 0\)"),
        ((1, 3, 1), {"spatial_shape": (4,)}, r"\(rows, columns\) of the output grid, not \(4,\)"),
        ((1, 3, 1), {}, "give spatial_shape=.* or a gate"),
        ((1, 3, 1), {"spatial_shape": (4, 4), "padding_mode": "same"}, "zeros, circular, longitude, got 'same'"),
        ((1, 3, 1), {"spatial_shape": (4, 4), "order": "best"}, "one of score, index, families, got 'best'"),
        ((1, 3, 1), {"spatial_shape": (4, 4), "damping": -0.1}, r"factor must be in \[0, 1\], got -0.1"),
        (
            (1, 3, 1),
            {"spatial_shape": (4, 4), "rule": "rd"},
            "no rule named 'rd'; there are rc, probe, straight_through, end_to_end, frozen",
        ),
        ((1, 3, 1), {"spatial_shape": (4, 4), "rule": 3}, "one of smoe.rules or its name, got 3"),
        ((1, 3, 1), {"gate": smoe.TensorGate(4, 2, (4, 4))}, "selects 2 of 4 experts, but the layer .* 1 of 3"),
        (
            (1, 3, 1),
            {"gate": smoe.TensorGate(3, 1, (4, 4)), "spatial_shape": (4, 5)},
            r"made for a grid of \(4, 4\), but spatial_shape is \(4, 5\)",
        ),
        (
            (1, 3, 1),
            {"gate": smoe.nn.NoisyGate(smoe.TensorGate(3, 1, (4, 4))), "spatial_shape": (4, 5)},
            r"made for a grid of \(4, 4\), but spatial_shape is \(4, 5\)",
        ),
    ],
)
def test_wrong_arguments_are_refused_at_construction(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        smoe.SpatialMoE2d(*arguments, **options)


def test_input_of_another_grid_is_refused():
    layer = smoe.SpatialMoE2d(1, 3, 1, stride=2, spatial_shape=(6, 4), rule=RC, order="score")
    with pytest.raises(ValueError, match=r"grid of \(6, 4\), but .* at stride 2 has the output grid \(3, 2\)"):
        layer(torch.randn(1, 1, 6, 4))
    with pytest.raises(ValueError, match="input with 2 channels"):
        layer(torch.randn(1, 2, 12, 8))


def test_the_next_layer_may_work_in_place():
    torch.manual_seed(0)
    layer = smoe.SpatialMoE2d(1, 3, 1, spatial_shape=(4, 4), order="score", rule=RC)
    x = torch.randn(2, 1, 4, 4)
    F.relu(layer(x)).pow(2).mean().backward()
    expected = [parameter.grad.clone() for parameter in layer.parameters() if parameter.grad is not None]
    layer.zero_grad()
    F.relu(layer(x), inplace=True).pow(2).mean().backward()
    assert len(expected) == 2
    for parameter, gradient in zip(layer.parameters(), expected, strict=True):
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, gradient)


def test_experts_start_with_the_kaiming_bound():
    torch.manual_seed(0)
    layer = smoe.SpatialMoE2d(4, 64, 2, (3, 5), spatial_shape=(2, 2), rule=RC, order="score")
    # gain sqrt(2) and fan-in 4 * 3 * 5
    bound = (6 / 60) ** 0.5
    assert 0.99 * bound < layer.weight.abs().max() <= bound


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
def test_an_input_of_integers_is_refused(dtype):
    x = torch.ones(2, 1, 4, 4, dtype=dtype)
    layer = smoe.SpatialMoE2d(1, 3, 1, spatial_shape=(4, 4), order="score", rule=RC)
    for gate in (layer.gate, ConvGate(1, 3, 1)):
        with pytest.raises(ValueError, match=f"SpatialMoE2d needs a floating-point input, got {dtype}"):
            smoe.SpatialMoE2d(1, 3, 1, gate=gate, rule=RC)(x)


@pytest.mark.parametrize("gate", ["tensor", "conv"])
@pytest.mark.parametrize("expert_channels", [1, 2])
def test_transforms_of_functions_in_evaluation(expert_channels, gate):
    torch.manual_seed(0)
    one = smoe.TensorGate(3, 2, (4, 5)) if gate == "tensor" else ConvGate(1, 3, 2)
    layer = smoe.SpatialMoE2d(1, 3, 2, gate=one, expert_channels=expert_channels, rule=RC, bias=True).eval()
    x = torch.randn(2, 1, 4, 5)
    expected = torch.autograd.functional.jacobian(layer, x)
    torch.testing.assert_close(torch.func.jacrev(layer)(x), expected)
    loss, gradient = torch.func.grad_and_value(lambda x: layer(x).square().sum())(x)[::-1]
    torch.testing.assert_close(loss, layer(x).square().sum())
    torch.testing.assert_close(gradient, 2 * torch.einsum("bchw,bchwBCHW->BCHW", layer(x), expected))
