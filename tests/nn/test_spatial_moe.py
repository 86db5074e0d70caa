from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import smoe
from definitions import (
    assert_same,
    define_layer_gradients,
    gate_gradient,
    gate_scores,
    layer_gradients,
    loop_top_experts,
)
from smoe.losses import routing_classification_loss
from smoe.ops import output_grid
from smoe.ops.routing_error import choice_errors, wrong_choices


def compare_with_definition(
    num_experts: int = 4,
    num_selected: int = 2,
    *,
    batch: int = 2,
    grid: tuple[int, int] = (3, 4),
    gate: str = "tensor",
    stride: int = 1,
    **options: Any,
) -> dict[str, torch.Tensor]:
    """One training step's output and gradients against the loops; returns them."""
    torch.manual_seed(7)
    expert_channels = options.get("expert_channels", 1)
    if gate == "conv":
        options["gate"] = smoe.ConvGate(2, num_experts, num_selected, stride=stride)
    else:
        options["gate"] = smoe.TensorGate(num_experts, num_selected, output_grid(*grid, stride), expert_channels)
    layer = smoe.SpatialMoE2d(2, num_experts, num_selected, stride=stride, **options).double()
    x = torch.randn(batch, 2, *grid, dtype=torch.float64)
    target = torch.randn(batch, num_selected * expert_channels, *output_grid(*grid, stride), dtype=torch.float64)
    actual = layer_gradients(layer, x, target)
    assert_same(actual, define_layer_gradients(layer, x, target))
    return actual


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("damping", [None, 0.0, 0.1])
@pytest.mark.parametrize("rule", ["rc", "end_to_end"])
@pytest.mark.parametrize("expert_channels", [1, 2])
@pytest.mark.parametrize("num_selected", [1, 2, 3, 4])
def test_training_equals_the_definition(num_selected, expert_channels, rule, damping, weighted):
    compare_with_definition(
        4,
        num_selected,
        expert_channels=expert_channels,
        training_rule=rule,
        damping=damping,
        weighted=weighted,
    )


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("rule", ["rc", "end_to_end"])
@pytest.mark.parametrize("stride", [1, 2])
def test_gate_that_looks_at_its_input(stride, rule, weighted):
    compare_with_definition(gate="conv", stride=stride, training_rule=rule, weighted=weighted, damping=0.1)


@pytest.mark.parametrize(
    "options",
    [
        {"rc_weight": 3.0},
        {"rc_weight": 0.0},
        {"error_quantile": 0.0},
        {"error_quantile": 0.7},
        {"error_quantile": 1.0},
        {"tolerance": 0.5, "damping_tolerance": 0.0},
        {"tolerance": 0.0, "damping_tolerance": 0.5, "damping": 0.1},
        {"order": "index"},
        {"order": "index", "weighted": True, "training_rule": "end_to_end", "expert_channels": 2},
        {"stride": 2, "expert_channels": 2},
        {"stride": 2, "padding_mode": "longitude"},
        {"padding_mode": "circular", "kernel_size": (1, 3)},
        {"padding_mode": "longitude", "kernel_size": (5, 3), "order": "index"},
        {"batch": 1, "grid": (1, 1)},
        {"num_experts": 7, "num_selected": 5},
        {"num_experts": 1, "num_selected": 1},
    ],
)
def test_each_option_equals_the_definition(options):
    compare_with_definition(**options)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_shape_and_option(data):
    num_experts = data.draw(st.integers(1, 5), "X")
    compare_with_definition(
        num_experts,
        data.draw(st.integers(1, num_experts), "E"),
        batch=data.draw(st.integers(1, 3), "B"),
        grid=(data.draw(st.integers(1, 4), "H"), data.draw(st.integers(1, 4), "W")),
        gate=data.draw(st.sampled_from(["tensor", "conv"]), "gate"),
        stride=data.draw(st.integers(1, 2), "stride"),
        kernel_size=(data.draw(st.sampled_from([1, 3]), "kh"), data.draw(st.sampled_from([1, 3]), "kw")),
        expert_channels=data.draw(st.integers(1, 2), "F"),
        padding_mode=data.draw(st.sampled_from(["zeros", "circular", "longitude"]), "padding_mode"),
        weighted=data.draw(st.booleans(), "weighted"),
        order=data.draw(st.sampled_from(["score", "index"]), "order"),
        training_rule=data.draw(st.sampled_from(["rc", "end_to_end"]), "training_rule"),
        rc_weight=data.draw(st.sampled_from([1.0, 0.2]), "rc_weight"),
        error_quantile=data.draw(st.sampled_from([0.0, 0.3, 0.7, 1.0]), "error_quantile"),
        damping=data.draw(st.sampled_from([None, 0.0, 0.1]), "damping"),
    )


def test_options_change_the_gradients():
    # Guards the comparisons above: an option that nobody reads would agree with a definition that ignores it too.
    plain = compare_with_definition()
    for name, value, what in [
        ("rc_weight", 3.0, "gate.scores.grad"),
        ("error_quantile", 0.7, "gate.scores.grad"),
        ("tolerance", 0.5, "gate.scores.grad"),
        ("damping_tolerance", 0.5, "weight.grad"),
        ("damping", 0.1, "weight.grad"),
        ("damping", None, "input.grad"),
    ]:
        changed = compare_with_definition(**{name: value})
        assert not torch.equal(changed[what], plain[what]), name


@pytest.mark.parametrize("gate_type", [smoe.TensorGate, smoe.ConvGate])
@pytest.mark.parametrize(("num_experts", "num_selected"), [(4, 1), (4, 3)])
@pytest.mark.parametrize("rc_weight", [1.0, 0.5])
def test_injected_gradient_is_autograds(rc_weight, num_experts, num_selected, gate_type):
    torch.manual_seed(3)
    gate = (
        smoe.TensorGate(num_experts, num_selected, (5, 6), 2)
        if gate_type is smoe.TensorGate
        else smoe.ConvGate(1, num_experts, num_selected)
    )
    layer = smoe.SpatialMoE2d(
        1, num_experts, num_selected, gate=gate, expert_channels=2, rc_weight=rc_weight, damping=None
    ).double()
    x = torch.randn(3, 1, 5, 6, dtype=torch.float64)
    target = torch.randn(3, 2 * num_selected, 5, 6, dtype=torch.float64)
    actual = layer_gradients(layer, x, target)

    # The same layer without training inside backward, and the loss written out. In evaluation its gate gets nothing
    # from the task.
    layer.eval()
    leaf = x.clone().requires_grad_()
    output = layer(leaf)
    task_loss = F.mse_loss(output, target)
    (error,) = torch.autograd.grad(task_loss, output, retain_graph=True)
    (is_wrong,) = wrong_choices(choice_errors(error, 2), 0.3, (1e-5,))
    routing_loss = routing_classification_loss(
        layer.gate(leaf).scores, layer.routing(leaf).indices, is_correct=~is_wrong
    )
    parameters = dict(layer.named_parameters())
    found = torch.autograd.grad(task_loss + rc_weight * routing_loss, [leaf, *parameters.values()])
    expected = {f"{name}.grad": grad for name, grad in zip(["input", *parameters], found, strict=True)}
    assert_same(actual, {"output": output.detach(), **expected})


@pytest.mark.parametrize("weighted", [False, True])
def test_with_the_rc_loss_the_gate_gets_nothing_from_the_task(weighted):
    # With rc_weight 0, all that is left would come from the task.
    layer = smoe.SpatialMoE2d(1, 3, 1, spatial_shape=(4, 4), weighted=weighted, rc_weight=0.0)
    layer(torch.randn(2, 1, 4, 4)).pow(2).mean().backward()
    assert gate_gradient(layer).abs().max() == 0
    assert layer.weight.grad is not None
    assert layer.weight.grad.abs().max() > 0


@pytest.mark.parametrize("weighted", [False, True])
def test_with_all_experts_selected_there_is_nothing_to_train_or_damp(weighted):
    def gradients(**options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(0)
        layer = smoe.SpatialMoE2d(1, 3, 3, spatial_shape=(4, 4), weighted=weighted, **options)
        layer(torch.randn(2, 1, 4, 4)).pow(2).mean().backward()
        assert layer.weight.grad is not None
        return layer.weight.grad, gate_gradient(layer)

    trained, plain = gradients(), gradients(training_rule="end_to_end", damping=None)
    assert torch.equal(trained[0], plain[0])
    assert trained[1].abs().max() == 0


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_errors_that_are_not_finite_are_visible(value):
    layer = smoe.SpatialMoE2d(1, 3, 1, spatial_shape=(4, 4))
    x = torch.randn(2, 1, 4, 4)
    layer(x).pow(2).mean().backward()
    assert layer.num_nonfinite_errors == 0
    layer.zero_grad()
    for expected in (1, 2):
        (layer(x) * value).sum().backward()
        assert layer.num_nonfinite_errors == expected
        assert gate_gradient(layer).abs().max() == 0
        assert layer.weight.grad is not None
        assert not layer.weight.grad.isfinite().all()


def test_shapes_and_defaults():
    layer = smoe.SpatialMoE2d(3, 4, 2, 5, expert_channels=2, spatial_shape=(6, 7))
    assert layer.weight.shape == (8, 3, 5, 5)
    assert {name for name, _ in layer.named_parameters()} == {"weight", "gate.scores"}
    assert isinstance(layer.gate, smoe.TensorGate)
    assert gate_scores(layer).shape == (4, 6, 7)
    assert layer(torch.randn(2, 3, 6, 7)).shape == (2, 4, 6, 7)
    routing = layer.routing()
    assert routing.indices.shape == routing.weights.shape == (2, 6, 7)
    assert layer.routing(torch.randn(2, 3, 6, 7)).indices.shape == (2, 6, 7)
    training = layer.routing_training
    assert (training.training_rule, training.rc_weight, training.error_quantile) == ("rc", 1.0, 0.3)
    assert (training.damping, training.tolerance, training.damping_tolerance) == (0.0, 1e-5, 1e-3)
    assert (layer.weighted, layer.order, layer.stride, layer.padding_mode) == (False, "score", 1, "zeros")


def test_routing_of_a_gate_that_looks_at_its_input():
    layer = smoe.SpatialMoE2d(1, 3, 2, gate=smoe.ConvGate(1, 3, 2))
    x = torch.randn(4, 1, 5, 5)
    assert layer.routing(x).indices.shape == (4, 2, 5, 5)
    with pytest.raises(ValueError, match="ConvGate looks at its input"):
        layer.routing()


@pytest.mark.parametrize("order", ["score", "index"])
def test_output_channels_follow_the_order(order):
    layer = smoe.SpatialMoE2d(1, 4, 3, 1, spatial_shape=(3, 3), order=order)
    with torch.no_grad():
        layer.weight.copy_(torch.arange(4.0).reshape(4, 1, 1, 1))
    output = layer(torch.ones(1, 1, 3, 3))
    expected = loop_top_experts(gate_scores(layer), 3, order)
    assert torch.equal(output[0].long(), expected)
    assert torch.equal(layer.routing().indices, expected)


def test_weighted_output_is_multiplied_by_the_scores():
    layer = smoe.SpatialMoE2d(1, 4, 2, 1, expert_channels=2, spatial_shape=(3, 3), weighted=True)
    with torch.no_grad():
        layer.weight.fill_(1.0)
    weights = layer.routing().weights
    output = layer(torch.full((1, 1, 3, 3), 2.0))
    torch.testing.assert_close(output[0], 2 * weights.repeat_interleave(2, dim=0))
    assert torch.equal(output, layer.eval()(torch.full((1, 1, 3, 3), 2.0)))


@pytest.mark.parametrize("weighted", [False, True])
def test_evaluation_computes_the_same_and_damps_nothing(weighted):
    layer = smoe.SpatialMoE2d(2, 4, 2, spatial_shape=(4, 5), weighted=weighted).double()
    x, target = torch.randn(2, 2, 4, 5, dtype=torch.float64), torch.randn(2, 2, 4, 5, dtype=torch.float64)
    trained = layer_gradients(layer, x, target)
    evaluated = layer_gradients(layer.eval(), x, target)
    layer.train()
    layer.routing_training = smoe.ops.RoutingTraining(training_rule="end_to_end", damping=None)
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
        training_rule="end_to_end",
        damping=None,
        dtype=torch.float64,
    ).train(training)

    def output(x: torch.Tensor, weight: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(layer, {"weight": weight, "gate.scores": scores}, (x,))

    x = torch.randn(2, 2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(output, (x, layer.weight, gate_scores(layer)))


@pytest.mark.parametrize("training", [True, False])
def test_gradcheck_unweighted(training):
    gate = smoe.FixedGate.random(3, 2, (3, 4))
    layer = smoe.SpatialMoE2d(
        2, 3, 2, gate=gate, padding_mode="longitude", training_rule="end_to_end", damping=None
    ).double()
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
        ((1, 3, 1), {"spatial_shape": (4, 4), "order": "best"}, "one of score, index, got 'best'"),
        ((1, 3, 1), {"spatial_shape": (4, 4), "error_quantile": 2}, r"error_quantile must be in \[0, 1\], got 2"),
        ((1, 3, 1), {"spatial_shape": (4, 4), "damping": -0.1}, r"damping must be in \[0, 1\].* got -0.1"),
        ((1, 3, 1), {"spatial_shape": (4, 4), "tolerance": -1.0}, "tolerance must not be negative, got -1.0"),
        ((1, 3, 1), {"gate": smoe.TensorGate(4, 2, (4, 4))}, "selects 2 of 4 experts, but the layer .* 1 of 3"),
        (
            (1, 3, 1),
            {"gate": smoe.TensorGate(3, 1, (4, 4)), "spatial_shape": (4, 5)},
            r"made for a grid of \(4, 4\), but spatial_shape is \(4, 5\)",
        ),
        (
            (1, 3, 1),
            {"gate": smoe.NoisyGate(smoe.TensorGate(3, 1, (4, 4))), "spatial_shape": (4, 5)},
            r"made for a grid of \(4, 4\), but spatial_shape is \(4, 5\)",
        ),
    ],
)
def test_wrong_arguments_are_refused_at_construction(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        smoe.SpatialMoE2d(*arguments, **options)


def test_input_of_another_grid_is_refused():
    layer = smoe.SpatialMoE2d(1, 3, 1, stride=2, spatial_shape=(6, 4))
    with pytest.raises(ValueError, match=r"grid of \(6, 4\) but the output grid is \(3, 2\)"):
        layer(torch.randn(1, 1, 6, 4))
    with pytest.raises(ValueError, match="input with 2 channels"):
        layer(torch.randn(1, 2, 12, 8))


def test_the_next_layer_may_work_in_place():
    torch.manual_seed(0)
    layer, x = smoe.SpatialMoE2d(1, 3, 1, spatial_shape=(4, 4)), torch.randn(2, 1, 4, 4)
    F.relu(layer(x)).pow(2).mean().backward()
    expected = [parameter.grad.clone() for parameter in layer.parameters() if parameter.grad is not None]
    layer.zero_grad()
    F.relu(layer(x), inplace=True).pow(2).mean().backward()
    assert len(expected) == 2
    for parameter, gradient in zip(layer.parameters(), expected, strict=True):
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, gradient)


def test_second_derivatives_of_the_training_rule_are_refused():
    layer = smoe.SpatialMoE2d(1, 3, 1, spatial_shape=(4, 4))
    x = torch.randn(2, 1, 4, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(layer(x).pow(2).mean(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="train_routing_backward"):
        gradient.pow(2).sum().backward()


def test_experts_start_with_the_kaiming_bound():
    torch.manual_seed(0)
    layer = smoe.SpatialMoE2d(4, 64, 2, (3, 5), spatial_shape=(2, 2))
    # gain sqrt(2) and fan-in 4 * 3 * 5
    bound = (6 / 60) ** 0.5
    assert 0.99 * bound < layer.weight.abs().max() <= bound
