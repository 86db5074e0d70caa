from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smoe
from definitions import gate_gradient
from smoe.ops._operators import has_library
from smoe.rules import RoutingClassification
from smoe_paper.baselines.gates import ConvGate

RC = RoutingClassification.released()


class SharedGateNet(nn.Module):
    """Two SMoE layers on one gate, a ReLU between."""

    def __init__(self, **options) -> None:
        super().__init__()
        self.gate = smoe.TensorGate(4, 2, (5, 6))
        self.first = smoe.SpatialMoE2d.from_experts(1, 4, 2, gate=self.gate, **options)
        self.second = smoe.SpatialMoE2d.from_experts(2, 4, 2, gate=self.gate, **options)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(input)))


def gradients(net: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.grad.clone() for name, parameter in net.named_parameters() if parameter.grad is not None}


def assert_equal(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float = 0.0) -> None:
    assert actual.keys() == expected.keys()
    assert expected
    for name, value in expected.items():
        torch.testing.assert_close(actual[name], value, rtol=tolerance, atol=tolerance)


GENERATOR = torch.Generator().manual_seed(0)
X, TARGET = torch.randn(4, 1, 5, 6, generator=GENERATOR), torch.randn(4, 2, 5, 6, generator=GENERATOR)


def test_shared_gate_receives_the_sum_of_its_layers_gradients():
    torch.manual_seed(0)
    net = SharedGateNet().double()
    x, target = X.double(), TARGET.double()
    F.mse_loss(net(x), target).backward()
    apart = copy.deepcopy(net)
    apart.second.gate = copy.deepcopy(apart.gate)
    apart.zero_grad()
    F.mse_loss(apart(x), target).backward()
    first, second = gate_gradient(apart.first), gate_gradient(apart.second)
    assert first.abs().max() > 0
    assert second.abs().max() > 0
    assert net.gate.scores.grad is not None
    torch.testing.assert_close(net.gate.scores.grad, first + second, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("gate", [smoe.TensorGate(4, 2, (5, 6)), ConvGate(1, 4, 2)], ids=["tensor", "conv"])
def test_layer_whose_scores_were_computed_can_be_copied_after_training(gate):
    layer = smoe.SpatialMoE2d.from_experts(1, 4, 2, gate=gate, rule=RC)
    F.mse_loss(layer(X), TARGET).backward()
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(twin(X), layer(X))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_to_dtype(dtype):
    layer = smoe.SpatialMoE2d.from_experts(1, 3, 1, spatial_shape=(5, 6), rule=RC, order="score").to(dtype)
    routing = layer.routing()
    assert routing.weights.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    output = layer(X.to(dtype))
    assert output.dtype == dtype
    output.float().pow(2).mean().backward()
    for parameter in layer.parameters():
        assert parameter.grad is not None
        assert parameter.grad.dtype == dtype
        assert parameter.grad.abs().max() > 0
    assert layer._signal.num_nonfinite.dtype == torch.int64


def test_gradient_accumulation_equals_the_whole_batch():
    torch.manual_seed(0)
    net = SharedGateNet().double()
    x, target = X.double(), TARGET.double()
    F.mse_loss(net(x), target).backward()
    expected = gradients(net)
    net.zero_grad()
    for half in (slice(0, 2), slice(2, 4)):
        loss = smoe.nn.track_loss_scale(F.mse_loss(net(x[half]), target[half]), net)
        (loss / 2).backward()
    assert_equal(gradients(net), expected, tolerance=1e-13)


def test_tracked_scale_holds_for_one_backward_pass():
    net = SharedGateNet()
    F.mse_loss(net(X), TARGET).backward()
    expected = gradients(net)
    (smoe.nn.track_loss_scale(F.mse_loss(net(X), TARGET), net) * 1024).backward()
    net.zero_grad()
    F.mse_loss(net(X), TARGET).backward()
    assert_equal(gradients(net), expected)


def test_tracking_changes_no_value_and_needs_a_scalar():
    net = SharedGateNet()
    loss = F.mse_loss(net(X), TARGET)
    assert torch.equal(smoe.nn.track_loss_scale(loss, net), loss)
    plain = nn.Linear(2, 2)
    assert smoe.nn.track_loss_scale(loss, plain) is loss
    with pytest.raises(ValueError, match=r"loss must be a scalar, got shape \(4, 2, 5, 6\)"):
        smoe.nn.track_loss_scale(net(X), net)


@pytest.mark.parametrize("frozen", ["weight", "gate.scores"])
def test_gate_and_experts_learn_without_each_other(frozen):
    layer = smoe.SpatialMoE2d.from_experts(1, 3, 1, spatial_shape=(5, 6), rule=RC, order="score")
    layer.get_parameter(frozen).requires_grad_(False)
    layer(X).pow(2).mean().backward()
    assert {name for name, parameter in layer.named_parameters() if parameter.grad is None} == {frozen}


@pytest.mark.skipif(not has_library(), reason="the kernels are not built here")
@pytest.mark.parametrize("order", ["score", "index"])
def test_a_training_step_keeps_the_routing_in_int32_only(order):
    layer = smoe.SpatialMoE2d.from_experts(3, 6, 4, spatial_shape=(5, 7), order=order, rule=RC)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor):
        layer(torch.randn(2, 3, 5, 7, requires_grad=True))
    routings = [tensor for tensor in saved if not tensor.is_floating_point()]
    assert {tensor.dtype for tensor in routings} == {torch.int32}
    assert len({tensor.data_ptr() for tensor in routings}) == 1
    assert layer.routing().indices.dtype == torch.int64
