"""Gates and embeddings that several layers share stand once in a state_dict, and stay shared."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smoe
from definitions import gate_gradient
from smoe import SpatialMoE2d, TensorGate
from smoe.ops._operators import has_library
from smoe.rules import RoutingClassification
from smoe_paper.baselines.layers import ConvGate
from smoe_paper.baselines.routing_losses import ScoreGate

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


def one_gate() -> nn.Sequential:
    gate = TensorGate(4, 2, (5, 5))
    options: tuple[dict[str, Any], ...] = ({"gate": gate}, {"gate": gate}, {"spatial_shape": (5, 5), "order": "score"})
    channels = (1, 2, 2)
    layers = (SpatialMoE2d.from_experts(n, 4, 2, rule="rc", **each) for n, each in zip(channels, options, strict=True))
    return nn.Sequential(*layers)


def one_embedding() -> nn.Sequential:
    plain = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1))
    return smoe.convert(plain, example_input=torch.zeros(1, 1, 5, 5))  # type: ignore[return-value]


# A network, the tensor that its first two layers share, and how many layers do.
CASES = {"gate": (one_gate, "gate.scores", 2), "embedding": (one_embedding, "gate.embedding.values", 3)}
DUPLICATES = [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))]


def holders(net: nn.Sequential, name: str) -> list[nn.Module]:
    """The modules that hold the tensor, layer by layer."""
    return [layer.get_submodule(name.rpartition(".")[0]) for layer in net]


@pytest.mark.parametrize("case", CASES)
def test_what_is_shared_stands_once_in_the_state_dict(case: str) -> None:
    make, name, number = CASES[case]
    net = make()
    expected = [f"0.{name}", *(f"{place}.{name}" for place in range(number, 3))]
    # Twice: what one call has seen must not leak into the next.
    for _ in range(2):
        assert [key for key in net.state_dict() if key.endswith(name)] == expected
    # Without the layer that came first, another has it.
    assert next(key for key in net[1:].state_dict() if key.endswith(name)) == f"1.{name}"
    assert [key for key in net[1].state_dict() if key.endswith(name)] == [name]
    assert len({id(holder) for holder in holders(net.to(torch.float64), name)[:number]}) == 1


@pytest.mark.parametrize("duplicate", DUPLICATES)
@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_what_is_shared_is_copied_and_loaded(case: str, duplicate: Callable[..., nn.Sequential], assign: bool) -> None:
    make, name, number = CASES[case]
    net, other = make(), make()
    state = net.state_dict()
    twin = duplicate(other)
    twin.load_state_dict(state, assign=assign)
    first = holders(twin, name)[0]
    assert all(holder is first for holder in holders(twin, name)[:number])
    assert first is not holders(other, name)[0]
    assert list(twin.state_dict()) == list(state)
    x = torch.randn(2, 1, 5, 5)
    assert torch.equal(twin.eval()(x), net.eval()(x))
    del state[f"0.{name}"]
    with pytest.raises(RuntimeError, match=rf'Missing key\(s\) in state_dict: "0.{name}"'):
        twin.load_state_dict(state)


def test_the_gate_within_a_noisy_gate_is_another_gate() -> None:
    inner = TensorGate(4, 2, (5, 5))
    net = nn.Sequential(
        SpatialMoE2d.from_experts(1, 4, 2, gate=ScoreGate(inner), rule="rc"),
        SpatialMoE2d.from_experts(2, 4, 2, gate=inner, rule="rc"),
    )
    assert [key for key in net.state_dict() if key.endswith("scores")] == ["0.gate.gate.scores", "1.gate.scores"]
    net.load_state_dict(net.state_dict())


def test_a_converted_network_is_saved_by_safetensors(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    net, other = one_embedding(), one_embedding()
    safetensors.save_file(net.state_dict(), tmp_path / "net.safetensors")
    other.load_state_dict(safetensors.load_file(tmp_path / "net.safetensors"))
    x = torch.randn(2, 1, 5, 5)
    assert torch.equal(other.eval()(x), net.eval()(x))


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("kind", ["plane", "sphere"])
def test_a_layer_made_without_memory_is_loaded(kind: str, assign: bool) -> None:
    def make() -> smoe.nn.RoutedLayer:
        if kind == "sphere":
            return smoe.HEALPixMoE(2, 4, nside=2, pixel_order="ring")
        return smoe.SpatialMoE2d(2, 4, spatial_shape=(6, 8))

    layer, x = make().eval(), torch.randn(2, 2, *((48,) if kind == "sphere" else (6, 8)))
    with torch.no_grad():
        layer.get_parameter("weight").normal_()
    with torch.device("meta"):
        loaded = make().eval()
        loaded(x.to("meta"))
    loaded = loaded if assign else loaded.to_empty(device="cpu")
    loaded.load_state_dict(layer.state_dict(), assign=assign)
    assert torch.equal(loaded(x), layer(x))
    loaded.train()(x).sum().backward()
