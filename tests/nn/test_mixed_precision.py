from __future__ import annotations

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smoe
from definitions import gate_gradient
from smoe.rules import RoutingClassification
from smoe_paper.baselines.layers import ConvGate

RC = RoutingClassification.released()

GATES = {
    "tensor": lambda: smoe.TensorGate(4, 2, (9, 10)),
    "conv": lambda: ConvGate(2, 4, 2),
}
GENERATOR = torch.Generator().manual_seed(0)
X, TARGET = torch.randn(3, 2, 9, 10, generator=GENERATOR), torch.randn(3, 2, 9, 10, generator=GENERATOR)


@pytest.mark.parametrize(("weighted", "dtype"), [(False, torch.bfloat16), (True, torch.float16)])
@pytest.mark.parametrize("gate", GATES)
def test_autocast_routes_in_float32(weighted, dtype, gate):
    torch.manual_seed(0)
    layer = smoe.SpatialMoE2d.from_experts(2, 4, 2, gate=GATES[gate](), weighted=weighted, rule=RC).eval()
    expected = layer.routing(X)
    with torch.autocast("cpu", dtype):
        actual = layer.routing(X)
        output = layer(X)
    assert torch.equal(actual.indices, expected.indices)
    assert torch.equal(actual.weights, expected.weights)
    assert output.dtype == dtype
    torch.testing.assert_close(output.float(), layer(X), rtol=0.1, atol=0.1)


def test_input_in_half_precision_is_scored_in_float32():
    layer = smoe.SpatialMoE2d.from_experts(2, 4, 2, gate=ConvGate(2, 4, 2), rule=RC)
    half = X.bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        actual = layer.routing(half)
    assert torch.equal(actual.weights, layer.routing(half.float()).weights)


def train_step(net: nn.Module, init_scale: float, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Parameters after one step with a loss scaler."""
    net = copy.deepcopy(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale)
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        output = net(X)
    loss = smoe.nn.track_loss_scale(F.mse_loss(output.float(), TARGET), net)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return {name: parameter.detach() for name, parameter in net.named_parameters()}


def make_net(gate: str) -> nn.Module:
    torch.manual_seed(1)
    shared = GATES[gate]()
    return nn.Sequential(
        smoe.SpatialMoE2d.from_experts(2, 4, 2, gate=shared, rule=RC),
        nn.Tanh(),
        smoe.SpatialMoE2d.from_experts(2, 4, 2, gate=shared, damping=0.1, rule=RC),
    )


@pytest.mark.parametrize("gate", ["tensor", "conv"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_update_is_the_same_at_loss_scale_1_and_65536(dtype, gate):
    # Powers of two scale these two dtypes without rounding.
    net = make_net(gate)
    start = dict(net.named_parameters())
    plain, scaled = train_step(net, 1.0, dtype), train_step(net, 65536.0, dtype)
    for name, value in plain.items():
        assert not torch.equal(value, start[name]), name
        torch.testing.assert_close(scaled[name], value, rtol=1e-6, atol=1e-9)


def test_gate_update_is_the_same_at_loss_scale_1_and_65536_in_float16():
    torch.manual_seed(2)
    # Multiples of 1/8 and few pixels: the errors are exact in float16 at both scales.
    layer = smoe.SpatialMoE2d.from_experts(2, 4, 2, 1, gate=smoe.TensorGate(4, 2, (9, 10)), rule=RC)
    with torch.no_grad():
        layer.weight.copy_((layer.weight * 8).round() / 8)

    def unscaled_gradient(scale: float) -> torch.Tensor:
        layer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            output = layer((X * 4).round() / 4)
        loss = smoe.nn.track_loss_scale((output.float() - (TARGET * 8).round() / 8).pow(2).sum() / 1024, layer)
        (loss * scale).backward()
        return gate_gradient(layer) / scale

    expected = unscaled_gradient(1.0)
    assert expected.abs().max() > 0
    torch.testing.assert_close(unscaled_gradient(65536.0), expected, rtol=1e-6, atol=0.0)


def test_an_overflow_at_the_scale_skips_the_step_and_is_counted():
    layer = smoe.SpatialMoE2d.from_experts(2, 4, 2, spatial_shape=(9, 10), rule=RC, order="score")
    before = copy.deepcopy(layer.state_dict())
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    with torch.autocast("cpu", torch.float16):
        output = layer(X)
    scaler.scale(smoe.nn.track_loss_scale(F.mse_loss(output.float(), TARGET), layer)).backward()
    scaler.step(optimizer)
    scaler.update()
    assert layer._signal.num_nonfinite == 1
    assert scaler.get_scale() < 2.0**40
    for name, value in layer.state_dict().items():
        assert torch.equal(value, before[name])


def test_float16_without_a_tracked_loss_warns_once():
    layer, tracked = (
        smoe.SpatialMoE2d.from_experts(2, 4, 2, spatial_shape=(9, 10), rule=RC, order="score").half() for _ in range(2)
    )
    for _ in range(2):
        smoe.nn.track_loss_scale(tracked(X.half()).float().pow(2).mean(), tracked).backward()
    layer(X.half()).float().pow(2).mean().backward()
    with pytest.warns(UserWarning, match="smoe.nn.track_loss_scale"):
        layer(X.half())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(X.half())
