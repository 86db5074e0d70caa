from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smoe
from definitions import assert_same
from smoe.nn import GridConv2d
from smoe.ops import output_grid
from smoe.rules import Damping, RoutingClassification
from smoe_paper.baselines.gates import ConvGate

RC = RoutingClassification.released()

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
