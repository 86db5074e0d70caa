from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smoe
from definitions import assert_same, layer_gradients
from smoe.nn import GridConv2d
from smoe.ops import output_grid
from smoe.rules import Damping, RoutingClassification
from smoe_paper.baselines.layers import ConvGate
from smoe_paper.baselines.routing_losses import ScoreGate

RC = RoutingClassification.released()


def test_routing_of_a_gate_that_looks_at_its_input():
    layer = smoe.SpatialMoE2d.from_experts(1, 3, 2, gate=ConvGate(1, 3, 2), rule="rc")
    x = torch.randn(4, 1, 5, 5)
    assert layer.routing(x).indices.shape == (4, 2, 5, 5)
    with pytest.raises(ValueError, match="ConvGate looks at its input"):
        layer.routing()


@pytest.mark.parametrize("weighted", [False, True])
def test_evaluation_computes_the_same_and_damps_nothing(weighted):
    layer = smoe.SpatialMoE2d.from_experts(
        2, 4, 2, spatial_shape=(4, 5), weighted=weighted, order="score", rule=RC
    ).double()
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


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((1, 3, 5), {"spatial_shape": (4, 4)}, r"num_selected must be in \[1, 3\], got 5"),
        ((1, 3, 0), {"spatial_shape": (4, 4)}, r"num_selected must be in \[1, 3\], got 0"),
        ((1, 8.0, 2), {"spatial_shape": (4, 4)}, r"num_experts must be an integer, got 8\.0"),
        ((1, 8, 2.0), {"spatial_shape": (4, 4)}, r"num_selected must be an integer, got 2\.0"),
        ((1, 0, 1), {"spatial_shape": (4, 4)}, "num_experts must be at least 1, got 0"),
        ((0, 3, 1), {"spatial_shape": (4, 4)}, "in_channels must be at least 1, got 0"),
        ((1, 3, 1, (3, 3, 3)), {"spatial_shape": (4, 4)}, r"one number or \(rows, columns\), got \(3, 3, 3\)"),
        ((1, 3, 1), {"spatial_shape": (4, 4), "stride": 0}, "stride must be integers of at least 1, got 0"),
        ((1, 3, 1), {"spatial_shape": (4, 4), "expert_channels": 0}, "expert_channels must be at least 1, got 0"),
        ((1, 3, 1), {"spatial_shape": (4, 0)}, r"spatial_shape must be integers of at least 1, got \(4, 0\)"),
        ((1, 3, 1), {"spatial_shape": (4,)}, r"spatial_shape must be one number or \(rows, columns\), got \(4,\)"),
        ((1, 3, 1), {}, "give spatial_shape=.* or a gate"),
        ((1, 3, 1), {"spatial_shape": (4, 4), "padding_mode": "same"}, "longitude, reflect, replicate, got 'same'"),
        ((1, 3, 1), {"spatial_shape": (4, 4), "order": "best"}, "one of score, index, families, got 'best'"),
        ((1, 3, 1), {"spatial_shape": (4, 4), "damping": -0.1}, r"factor must be in \[0, 1\], got -0.1"),
        (
            (1, 3, 1),
            {"spatial_shape": (4, 4), "rule": "rd"},
            "no rule named 'rd'; there are rc, straight_through, end_to_end, frozen",
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
            {"gate": ScoreGate(smoe.TensorGate(3, 1, (4, 4))), "spatial_shape": (4, 5)},
            r"made for a grid of \(4, 4\), but spatial_shape is \(4, 5\)",
        ),
    ],
)
def test_wrong_arguments_are_refused_at_construction(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        smoe.SpatialMoE2d.from_experts(*arguments, **options)


def test_input_of_another_grid_is_refused():
    layer = smoe.SpatialMoE2d.from_experts(1, 3, 1, stride=2, spatial_shape=(6, 4), rule=RC, order="score")
    with pytest.raises(
        ValueError, match=r"inputs of \(12, 8\), .* stride 2 has the output grid \(3, 2\).* smoe\.interpolate_grids"
    ):
        layer(torch.randn(1, 1, 6, 4))
    with pytest.raises(ValueError, match=r"in_channels is 1, got shape \(1, 2, 12, 8\)"):
        layer(torch.randn(1, 2, 12, 8))


IMAGE, TOKENS = torch.randn(2, 3, 8, 8), smoe.nn.TokenMoE(3, 4, 1, spatial_shape=5)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda it: it(IMAGE.numpy()), TypeError, r"got numpy.ndarray: give torch.as_tensor\(input\)"),
        (lambda it: TOKENS(IMAGE.numpy()), TypeError, r"got numpy.ndarray: give torch.as_tensor\(input\)"),
        (lambda it: it(IMAGE.double()), ValueError, r"are torch.float32, got .* torch.float64: .* layer\.to"),
        (lambda it: it(IMAGE.bfloat16()), ValueError, r"are torch.float32, got .* torch.bfloat16: convert one"),
        (lambda it: it(IMAGE.long()), ValueError, "needs a floating-point input, got torch.int64"),
        (lambda it: TOKENS(IMAGE), ValueError, r"input must be \(B, \*positions, 3\), .* got shape \(2, 3, 8, 8\)"),
        (lambda it: type(it)(3, 4, spatial_shape=8), ValueError, r"must be \(rows, columns\) of .* 8"),
        (lambda it: type(it)(3, 4.0, spatial_shape=(8, 8)), ValueError, "out_channels must be .* got 4.0"),
        (lambda it: type(it)(3, 4, embedding="a"), TypeError, "embedding must be that of a gate, .* got str"),
        (lambda it: smoe.convert(it, example_input=IMAGE), ValueError, "1 SMoE layers: it was converted already"),
    ],
)
def test_wrong_inputs_are_refused_with_what_is_right(call, error, message):
    with pytest.raises(error, match=message):
        call(smoe.SpatialMoE2d(3, 4, spatial_shape=(8, 8)))


def test_the_next_layer_may_work_in_place():
    torch.manual_seed(0)
    layer = smoe.SpatialMoE2d.from_experts(1, 3, 1, spatial_shape=(4, 4), order="score", rule=RC)
    x = torch.randn(2, 1, 4, 4)
    F.relu(layer(x)).pow(2).mean().backward()
    expected = [parameter.grad.clone() for parameter in layer.parameters() if parameter.grad is not None]
    layer.zero_grad()
    F.relu(layer(x), inplace=True).pow(2).mean().backward()
    assert len(expected) == 2
    for parameter, gradient in zip(layer.parameters(), expected, strict=True):
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, gradient)


def test_the_layer_is_called_like_a_convolution():
    layer, conv = smoe.SpatialMoE2d(5, 6, 3, spatial_shape=(4, 5)), nn.Conv2d(5, 6, 3, padding=1)
    x = torch.randn(2, 5, 4, 5)
    assert layer(x).shape == conv(x).shape
    assert (layer.gate.num_experts, layer.gate.num_selected, layer.gate.order) == (12, 6, "families")
    assert layer.bias is not None and len(layer.bias) == 12
    for name in ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "transposed"):
        assert getattr(layer, name) == getattr(conv, name)
    assert (layer.output_padding, layer.padding_mode) == (conv.output_padding, conv.padding_mode)
    down = smoe.SpatialMoE2d(5, 6, (1, 3), stride=(2, 2), padding=(0, 1), bias=False, spatial_shape=(2, 3))
    assert down(x).shape == (2, 6, 2, 3) and down.stride[0] == 2 and down.bias is None
    first, rest = repr(layer).split("\n")[:2]
    assert first == "SpatialMoE2d("
    assert rest.strip().startswith("5, 6, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), candidates=2, rule=")


def test_both_ways_to_make_a_layer_agree():
    x = torch.randn(2, 1, 4, 5)
    for outputs, candidates in ((1, 3), (4, 2)):
        torch.manual_seed(0)
        layer = smoe.SpatialMoE2d(1, outputs, num_candidates=candidates, spatial_shape=(4, 5))
        torch.manual_seed(0)
        bank = smoe.SpatialMoE2d.from_experts(1, candidates * outputs, outputs, spatial_shape=(4, 5))
        assert layer.rule == bank.rule and type(layer.gate) is type(bank.gate)
        assert torch.equal(layer(x), bank(x))
    # Other rules keep the channels' candidates apart too.
    assert smoe.SpatialMoE2d(1, 4, spatial_shape=(4, 5), rule="rc").gate.order == "families"


def test_input_without_a_batch():
    layer = smoe.SpatialMoE2d(2, 3, spatial_shape=(4, 5)).eval()
    x = torch.randn(2, 4, 5)
    assert torch.equal(layer(x), layer(x[None])[0])
    layer.train()(x).square().sum().backward()
    assert layer.weight.grad is not None
    finer = torch.randn(2, 6, 7)
    assert smoe.interpolate_grids(layer.eval(), example_input=finer)(finer).shape == (3, 6, 7)


@pytest.mark.parametrize("outputs", [1, 4])
@pytest.mark.parametrize(("stride", "bias", "mode"), [(1, True, "zeros"), (2, False, "circular")])
def test_from_conv_computes_what_the_convolution_computes(outputs, stride, bias, mode):
    conv = nn.Conv2d(3, outputs, (3, 5), stride, (1, 2), bias=bias, padding_mode=mode, dtype=torch.float64).eval()
    grid = output_grid(6, 7, stride)
    layer = smoe.SpatialMoE2d.from_conv(conv, spatial_shape=grid, num_candidates=3)
    assert layer.gate.num_experts == 3 * outputs and not layer.training and (layer.bias is not None) == bias
    x = torch.randn(2, 3, 6, 7, dtype=torch.float64)
    for is_training in (True, False):
        torch.testing.assert_close(layer.train(is_training)(x), conv(x))
    layer.train()(x).square().sum().backward()
    conv(x).square().sum().backward()
    assert layer.weight.grad is not None and conv.weight.grad is not None
    # The candidates of a channel share its pixels.
    found = layer.weight.grad.unflatten(0, (outputs, 3)).sum(dim=1)
    torch.testing.assert_close(found, conv.weight.grad, rtol=1e-5, atol=1e-5)


def test_from_conv_keeps_what_learns_and_refuses_the_rest():
    conv = nn.Conv2d(3, 2, 3, padding=1)
    conv.weight.requires_grad_(False)
    layer = smoe.SpatialMoE2d.from_conv(conv, spatial_shape=(4, 4), local_affine=True)
    assert not layer.weight.requires_grad and layer.bias is not None and layer.bias.requires_grad
    x = torch.randn(1, 3, 4, 4)
    torch.testing.assert_close(layer(x), conv(x))
    globe = smoe.nn.GridConv2d(3, 2, padding_mode="longitude", bias=True)
    torch.testing.assert_close(smoe.SpatialMoE2d.from_conv(globe, spatial_shape=(4, 4))(x), globe(x))
    with pytest.raises(TypeError, match=r"SpatialMoE2d\.from_conv takes an nn\.Conv2d, got a Conv1d"):
        smoe.SpatialMoE2d.from_conv(nn.Conv1d(1, 1, 3, padding=1), spatial_shape=(4, 4))
    with pytest.raises(ValueError, match="has the order 'score': give a gate with order='families'"):
        smoe.SpatialMoE2d.from_conv(conv, gate=smoe.TensorGate(4, 2, (4, 4), order="score"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stride": (1, 0)}, r"stride must be integers of at least 1, got \(1, 0\)"),
        ({"padding": -1}, "padding must be integers of at least 0, got -1"),
        ({"padding": "full"}, "padding must be 'same', 'valid' or numbers, got 'full'"),
        ({"dilation": (1, 1, 1)}, r"dilation must be one number or \(rows, columns\), got \(1, 1, 1\)"),
        ({"groups": 2}, "groups must divide the channels, got 2 groups of 2 inputs and 3 outputs"),
        (
            {"groups": 2, "out_channels": 4, "gate": smoe.TensorGate(8, 4, (4, 4), order="score")},
            "groups need families of equal size, .* in the order 'score'",
        ),
        ({"spatial_shape": 8}, r"spatial_shape must be \(rows, columns\) of the output grid, got 8"),
        ({"out_channels": 8.0}, r"out_channels must be an integer, got 8\.0"),
        ({"num_candidates": 0}, "num_candidates must be at least 1, got 0"),
    ],
)
def test_what_a_convolution_may_be_and_the_layer_not(options, message):
    with pytest.raises(ValueError, match=message):
        smoe.SpatialMoE2d(**{"in_channels": 2, "out_channels": 3, "spatial_shape": (4, 4), **options})


def test_inputs_that_are_no_tensors_or_have_another_dtype_are_refused():
    layer = smoe.SpatialMoE2d(1, 2, spatial_shape=(4, 4))
    with pytest.raises(TypeError, match=r"gate must be a gate such as smoe.FactorisedGate\(...\), got str"):
        smoe.SpatialMoE2d(2, 4, gate="tensor")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"must be a torch\.Tensor, got numpy\.ndarray: give torch\.as_tensor\(input\)"):
        layer(torch.ones(1, 1, 4, 4).numpy())
    for dtype in (torch.float64, torch.bfloat16):
        with pytest.raises(ValueError, match=f"weights are torch.float32, got an input of {dtype}: convert"):
            layer(torch.ones(1, 1, 4, 4, dtype=dtype))
    for gate in (layer.gate, ConvGate(1, 4, 2)):
        with pytest.raises(ValueError, match=r"SpatialMoE2d needs a floating-point input, got torch\.uint8"):
            smoe.SpatialMoE2d.from_experts(1, 4, 2, gate=gate)(torch.ones(1, 1, 4, 4, dtype=torch.uint8))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(torch.ones(1, 1, 4, 4, dtype=torch.bfloat16)).shape == (1, 2, 4, 4)


GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(3, 2, 5, 6, dtype=torch.float64, generator=GENERATOR)


@pytest.mark.parametrize(
    ("options", "stride", "gate"),
    [
        ({"rule": RC, "expert_channels": 2}, 1, "tensor"),
        ({"rule": RC, "weighted": True, "damping": 0.1}, 2, "conv"),
        ({"rule": "end_to_end", "weighted": True, "order": "index", "damping": Damping(0.0, 0.3)}, 2, "tensor"),
        ({"rule": "end_to_end", "expert_channels": 2}, 1, "conv"),
        ({"rule": "frozen", "expert_channels": 2}, 2, "conv"),
        ({"rule": "rc(weight=0.5, tolerance=0.1)", "damping": Damping(0.0, 0.7, tolerance=0.2)}, 2, "tensor"),
    ],
)
def test_convolution_as_experts_equals_the_convolutional_layer(options, stride, gate):
    torch.manual_seed(0)
    grid = output_grid(5, 6, stride)
    F_, order = options.get("expert_channels", 1), options.get("order", "score")
    if gate == "tensor":
        one: smoe.SpatialGate = smoe.TensorGate(4, 2, grid, F_, order=order)
    else:
        one = ConvGate(2, 4, 2, stride=stride, order=order)
    layer = smoe.SpatialMoE2d.from_experts(2, 4, 2, gate=one, stride=stride, **options).double()
    experts = GridConv2d(2, 4 * F_, stride=stride)
    mixture = smoe.SpatialMoE(experts, 4, 2, gate=copy.deepcopy(one), **options).double()
    with torch.no_grad():
        experts.weight.copy_(layer.weight)
    target = torch.randn(3, 2 * F_, *grid, dtype=torch.float64)
    results = []
    for module, weight in ((layer, layer.weight), (mixture, experts.weight)):
        x = X.clone().requires_grad_()
        output = module(x)
        F.mse_loss(output, target).backward()
        assert x.grad is not None
        assert weight.grad is not None
        result = {"output": output.detach(), "input.grad": x.grad, "weight.grad": weight.grad}
        for name, parameter in module.gate.named_parameters():
            assert (parameter.grad is not None) == (options["rule"] != "frozen")
            if parameter.grad is not None:
                result[f"gate.{name}.grad"] = parameter.grad
        results.append(result)
    assert_same(*results)


def test_wrong_outputs_are_refused():
    options = {"spatial_shape": (5, 6), "rule": RC}
    with pytest.raises(ValueError, match=r"\(B, 6, \*grid\) for 3 experts with 2 outputs each, got .* \(3, 5, 5, 6\)"):
        smoe.SpatialMoE(nn.Conv2d(2, 5, 1), 3, 1, expert_channels=2, **options)(X.float())
    with pytest.raises(ValueError, match=r"P = 12, the pixels of the experts' output grid \(3, 4\), .*\(1, 1, 30\)"):
        smoe.SpatialMoE(nn.Conv2d(2, 3, 3), 3, 1, **options)(X.float())


def test_experts_may_take_integers_if_the_gate_does_not_look_at_them():
    class Lookup(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(5, 3)

        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return self.table(input[:, 0]).movedim(3, 1)

    classes = torch.randint(0, 5, (2, 1, 5, 6))
    layer = smoe.SpatialMoE(Lookup(), 3, 1, spatial_shape=(5, 6), order="score", rule=RC)
    assert layer(classes).shape == (2, 1, 5, 6)
    layer = smoe.SpatialMoE(Lookup(), 3, 1, gate=ConvGate(1, 3, 1), rule=RC)
    with pytest.raises(ValueError, match=r"SpatialMoE needs a floating-point input, got torch.int64"):
        layer(classes)
