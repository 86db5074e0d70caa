from __future__ import annotations

import pytest
import torch
from torch import nn

from smoe import SpatialMoE2d, TensorGate
from smoe.training.routing_warmup import RoutingWarmup


def make_net() -> nn.Sequential:
    torch.manual_seed(0)
    gate = TensorGate(4, 2, (5, 6))
    return nn.Sequential(SpatialMoE2d(1, 4, 2, gate=gate), nn.Tanh(), SpatialMoE2d(2, 4, 2, gate=gate, damping=0.1))


def gradients(net: nn.Sequential) -> dict[str, torch.Tensor]:
    net.zero_grad()
    x = torch.randn(3, 1, 5, 6, generator=torch.Generator().manual_seed(1))
    net(x).square().mean().backward()
    return {name: parameter.grad.clone() for name, parameter in net.named_parameters() if parameter.grad is not None}


def test_the_routing_waits_and_the_experts_learn_undamped() -> None:
    net, expected = make_net(), make_net()
    warmup = RoutingWarmup(net, num_epochs=2)
    always = gradients(net)
    warmup.begin_epoch(2)
    paused = gradients(net)
    # Several processes expect a gradient of every parameter.
    assert not paused["0.gate.scores"].any()
    # In evaluation mode gradients are those of the function computed.
    whole = gradients(expected.eval())
    torch.testing.assert_close(paused["0.weight"], whole["0.weight"])
    torch.testing.assert_close(paused["2.weight"], whole["2.weight"])
    assert not torch.equal(paused["0.weight"], always["0.weight"])
    warmup.begin_epoch(3)
    after = gradients(net)
    assert after["0.gate.scores"].any()
    for name, gradient in always.items():
        torch.testing.assert_close(after[name], gradient)


def test_a_paused_layer_still_counts_errors_that_are_not_finite() -> None:
    net = make_net()
    RoutingWarmup(net, num_epochs=1).begin_epoch(1)
    (net(torch.randn(1, 1, 5, 6)) * torch.inf).sum().backward()
    assert int(net[2].num_nonfinite_errors) == 1  # type: ignore[arg-type]


def test_negative_epochs() -> None:
    with pytest.raises(ValueError, match="must not be negative, got -1 epochs"):
        RoutingWarmup(make_net(), -1)
