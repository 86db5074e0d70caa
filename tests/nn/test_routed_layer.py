from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import smoe
from definitions import gate_gradient, gate_scores
from smoe.ops._operators import has_library
from smoe.rules import Damping, RoutingClassification
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


def test_shared_gate_is_one():
    net = SharedGateNet()
    assert [name for name, _ in net.named_parameters()] == ["gate.scores", "first.weight", "second.weight"]
    state = net.state_dict()
    scores = [tensor for name, tensor in state.items() if name.endswith("scores")]
    assert len({tensor.data_ptr() for tensor in scores}) == 1
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    other = SharedGateNet()
    other.load_state_dict(torch.load(file))
    assert other.first.gate is other.second.gate is other.gate
    assert torch.equal(other(X), net(X))


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


def test_shared_gate_survives_deepcopy_and_pickle_after_training():
    net = SharedGateNet()
    F.mse_loss(net(X), TARGET).backward()
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert twin.first.gate is twin.second.gate
        assert twin.gate is not net.gate
        assert torch.equal(twin(X), net(X))


@pytest.mark.parametrize(
    "gate", [smoe.TensorGate(4, 2, (5, 6), normalization="softmax"), ConvGate(1, 4, 2)], ids=["softmax", "conv"]
)
def test_layer_whose_scores_were_computed_can_be_copied_after_training(gate):
    layer = smoe.SpatialMoE2d.from_experts(1, 4, 2, gate=gate, rule=RC)
    F.mse_loss(layer(X), TARGET).backward()
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(twin(X), layer(X))


def test_copy_reads_its_own_gate():
    layer = smoe.SpatialMoE2d.from_experts(1, 3, 1, 1, spatial_shape=(2, 2), rule=RC, order="score")
    twin = copy.deepcopy(layer)
    with torch.no_grad():
        gate_scores(twin).zero_()
        gate_scores(layer).copy_(torch.arange(3.0)[:, None, None].expand(3, 2, 2))
    assert twin.routing().indices.eq(0).all()
    assert layer.routing().indices.eq(2).all()


def test_copies_train_alike_and_apart():
    net = SharedGateNet()
    F.mse_loss(net(X), TARGET).backward()
    twin = copy.deepcopy(net)
    for each in (net, twin):
        each.zero_grad()
    F.mse_loss(twin(X), TARGET).backward()
    assert not gradients(net)
    F.mse_loss(net(X), TARGET).backward()
    assert_equal(gradients(twin), gradients(net))


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


def test_everything_moves_with_the_module():
    layer = smoe.SpatialMoE2d.from_experts(1, 3, 1, gate=smoe.FixedGate.random(3, 1, (5, 6)), rule=RC).to("meta")
    assert gate_scores(layer).is_meta
    assert layer._signal.num_nonfinite.is_meta
    assert layer(torch.randn(2, 1, 5, 6, device="meta")).shape == (2, 1, 5, 6)
    made_there = smoe.SpatialMoE2d.from_experts(
        1, 3, 1, spatial_shape=(5, 6), device="meta", dtype=torch.float64, rule=RC, order="score"
    )
    assert {parameter.device.type for parameter in made_there.parameters()} == {"meta"}
    assert {parameter.dtype for parameter in made_there.parameters()} == {torch.float64}
    assert made_there._signal.num_nonfinite.is_meta


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


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_activation_checkpoints(use_reentrant):
    net, x = SharedGateNet(), X.clone().requires_grad_()
    (smoe.nn.track_loss_scale(F.mse_loss(net(x), TARGET), net) * 8).backward()
    expected = gradients(net)
    net.zero_grad()
    output = checkpoint(net, x, use_reentrant=use_reentrant)
    assert isinstance(output, torch.Tensor)
    (smoe.nn.track_loss_scale(F.mse_loss(output, TARGET), net) * 8).backward()
    assert_equal(gradients(net), expected)


def test_frozen_experts_do_not_keep_the_gate_from_learning():
    layer = smoe.SpatialMoE2d.from_experts(1, 3, 1, spatial_shape=(5, 6), rule=RC, order="score")
    layer.weight.requires_grad_(False)
    layer(X).pow(2).mean().backward()
    assert layer.weight.grad is None
    assert gate_gradient(layer).abs().max() > 0


def test_frozen_gate_does_not_keep_the_experts_from_learning():
    layer = smoe.SpatialMoE2d.from_experts(1, 3, 1, spatial_shape=(5, 6), rule=RC, order="score")
    layer.gate.requires_grad_(False)
    layer(X).pow(2).mean().backward()
    assert gate_scores(layer).grad is None
    assert layer.weight.grad is not None


def test_counts_of_errors_are_not_saved():
    layer = smoe.SpatialMoE2d.from_experts(1, 3, 1, spatial_shape=(5, 6), rule=RC, order="score")
    assert set(layer.state_dict()) == {"weight", "gate.scores", "gate.order_code"}


def test_repr_shows_the_numbers():
    text = repr(
        smoe.SpatialMoE2d.from_experts(2, 4, 3, (3, 5), spatial_shape=(5, 6), weighted=True, rule=RC, order="score")
    )
    for part in ("kernel_size=(3, 5)", "weighted=True", "num_experts=4", "num_selected=3", "spatial_shape=(5, 6)"):
        assert part in text


def gradients_of(layer: smoe.SpatialMoE2d) -> tuple[torch.Tensor, torch.Tensor]:
    assert isinstance(layer.gate, smoe.TensorGate)
    assert layer.gate.scores.grad is not None and layer.weight.grad is not None
    return layer.gate.scores.grad, layer.weight.grad


def test_tolerances_in_units_of_the_output_know_no_scale():
    """A thousand times the data and the loss of it: the same choices are wrong, and the experts learn alike."""

    def gradients(scale, unit):
        torch.manual_seed(3)
        layer = smoe.SpatialMoE2d.from_experts(
            1,
            3,
            1,
            spatial_shape=(6, 5),
            rule=RoutingClassification(0.5, 0.1, unit),
            damping=Damping(0.1, 0.5, 0.4, unit),
            order="score",
        ).double()
        x = torch.randn(4, 1, 6, 5, dtype=torch.float64)
        target = torch.randn(4, 1, 6, 5, dtype=torch.float64)
        F.mse_loss(layer(scale * x), scale * target).backward()
        gate, experts = gradients_of(layer)
        return gate, experts / scale**2

    for ours, theirs in zip(gradients(1.0, "output"), gradients(1000.0, "output"), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert not torch.allclose(gradients(1.0, "data")[0], gradients(1000.0, "data")[0])


def test_a_unit_of_the_output_is_its_root_mean_square():
    def rule(unit: str, factor: float) -> RoutingClassification:
        return RoutingClassification(0.3, 0.1 * factor, unit, damping=Damping(0.0, 0.3, 1e-3 * factor, unit))

    layer = smoe.SpatialMoE2d.from_experts(1, 3, 1, spatial_shape=(6, 5), rule=rule("output", 1.0), order="score")
    x, target = torch.randn(4, 1, 6, 5), torch.randn(4, 1, 6, 5)
    rms = float(layer(x).detach().square().mean().sqrt())
    same = smoe.SpatialMoE2d.from_experts(1, 3, 1, spatial_shape=(6, 5), rule=rule("data", rms), order="score")
    same.load_state_dict(layer.state_dict())
    for each in (layer, same):
        F.mse_loss(each(x), target).backward()
    for ours, theirs in zip(gradients_of(layer), gradients_of(same), strict=True):
        assert torch.equal(ours, theirs)


def test_an_unknown_unit_is_refused():
    with pytest.raises(ValueError, match="tolerance_unit must be one of data, output, got 'metres'"):
        RoutingClassification(tolerance_unit="metres")
    with pytest.raises(ValueError, match="tolerance_unit must be one of data, output, got 'metres'"):
        Damping(tolerance_unit="metres")


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
