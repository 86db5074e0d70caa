"""Converted networks in the tools that people use: tracing, counters, exporters, checkpoints."""

from __future__ import annotations

import copy
import importlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import smoe

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def plain() -> nn.Module:
    torch.manual_seed(0)
    depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), depthwise, nn.ConvTranspose2d(8, 4, 3, 2)).eval()


def converted() -> nn.Module:
    return smoe.convert(plain(), example_input=X).eval()


@pytest.mark.filterwarnings("ignore:`torch.jit.", "ignore::torch.jit.TracerWarning")
def test_jit_trace() -> None:
    net = converted()
    file, others = io.BytesIO(), torch.cat([X, X + 1.0])
    torch.jit.save(torch.jit.trace(net, X), file)
    file.seek(0)
    torch.testing.assert_close(torch.jit.load(file)(others), net(others))


def test_fx_takes_layers_as_leaves() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.conv(x).relu() + x.mean())

    net = smoe.convert(Net(), example_input=X, linear=True, predicate=lambda name, _: True).eval()
    traced = torch.fx.symbolic_trace(net)
    assert [node.target for node in traced.graph.nodes if node.op == "call_module"] == ["conv", "head"]
    assert isinstance(net.head, smoe.nn.TokenMoE)
    torch.testing.assert_close(traced(X + 1.0), net(X + 1.0))


@pytest.mark.filterwarnings("ignore:`torch.jit.script")
def test_scripts_are_refused_in_one_line() -> None:
    with pytest.raises(TypeError, match=r"torch.jit.script cannot compile SpatialMoE2d: use torch.jit.trace"):
        torch.jit.script(converted())
    with pytest.raises(AttributeError, match="no attribute 'SpatialMOE2d'; did you mean 'SpatialMoE2d'"):
        smoe.SpatialMOE2d  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.filterwarnings("ignore:`torch.jit.script")  # torch's own use
def test_the_hessian_is_that_of_the_network() -> None:
    nets: list[nn.Module] = [
        nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 1, 3, padding=1)).eval()
    ]
    nets.append(smoe.convert(nets[0], example_input=X).eval())
    found, expected = (torch.func.hessian(lambda x, net=net: net(x).square().sum())(X[:1]) for net in nets)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_flops_are_counted() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1))
    counts = []
    for each in (net, smoe.convert(net, example_input=X).eval()):
        x = X.clone().requires_grad_()
        with FlopCounterMode(display=False) as forward, torch.no_grad():
            each(x)
        with FlopCounterMode(display=False) as both:
            each(x).sum().backward()
        counts.append((forward.get_total_flops(), both.get_total_flops()))
    # 64 pixels of two samples: 27 x 8 and 72 x 4.
    assert counts[0] == counts[1] == (2 * 2 * 64 * (216 + 288), 3 * 2 * 2 * 64 * (216 + 288))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_onnx_without_a_detour(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    net = converted()
    torch.onnx.export(net, (X,), tmp_path / "net.onnx", dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(str(tmp_path / "net.onnx"))
    (found,) = session.run(None, {session.get_inputs()[0].name: X.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), net(X).detach(), rtol=1e-4, atol=1e-5)


def loss_of(net: nn.Module) -> torch.Tensor:
    return F.mse_loss(net(X), X.mean(dim=1, keepdim=True) * torch.linspace(-1.0, 1.0, 8))


def some_steps(net: nn.Module) -> Iterator[None]:
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    for _ in range(4):
        optimizer.zero_grad()
        loss_of(net).backward()
        optimizer.step()
        yield


def small_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(smoe.SpatialMoE2d(3, 4, spatial_shape=(8, 8)), smoe.SpatialMoE2d(4, 1, spatial_shape=(8, 8)))


@pytest.mark.parametrize("options", [{}, {"multi_avg_fn": get_ema_multi_avg_fn(0.5), "use_buffers": True}])
def test_averaged_models_see_their_gate(options: dict[str, Any]) -> None:
    net = small_net()
    averaged = AveragedModel(net, **options).eval()
    for _ in some_steps(net):
        averaged.update_parameters(net)
        averaged(X)  # evaluation keeps what it computed from the gate
    fresh = small_net().eval()
    fresh.load_state_dict(averaged.module.state_dict())
    assert torch.equal(fresh(X), averaged(X))
    assert not torch.equal(fresh(X), net.eval()(X))


def test_pruned_and_normalised_experts() -> None:
    net = small_net()
    prune.l1_unstructured(net[0], "weight", 0.5)
    spectral_norm(net[1])
    for _ in some_steps(net):
        assert float((cast(torch.Tensor, net[0].weight) == 0.0).float().mean()) == 0.5
    size = torch.linalg.matrix_norm(cast(torch.Tensor, net[1].weight).detach().flatten(1), 2)
    assert float(size) == pytest.approx(1.0, abs=0.2)
    # One power iteration in a pass, as in other layers: what is computed again is the same.
    counted: list[int] = []
    cast(Any, net[1]).parametrizations["weight"].register_forward_hook(lambda *args: counted.append(1))
    net.train().float()  # inputs are looked at as if it were new
    for num_passes in (1, 2):
        checkpoint(net, X, use_reentrant=False).sum().backward()
        assert len(counted) == 2 * num_passes
    before = net.eval()(X)
    prune.remove(net[0], "weight")
    torch.testing.assert_close(net(X), before)


@pytest.mark.filterwarnings("ignore")  # Lightning's own advice and deprecations
def test_lightning_trains_as_a_loop_does(tmp_path: Path) -> None:
    try:
        lightning: Any = importlib.import_module("lightning.pytorch")
    except Exception as error:  # a torchvision of another build makes it raise all kinds
        pytest.skip(f"lightning cannot be imported here: {type(error).__name__}: {error}")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = small_net()

        def training_step(self, batch: Any, batch_index: int) -> torch.Tensor:
            return loss_of(self.net)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=2e-3)

    module, twin = Module(), small_net()
    silent = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = lightning.Trainer(max_steps=4, accelerator="cpu", devices=1, default_root_dir=tmp_path, **silent)
    trainer.fit(module, range(4))
    assert len(list(some_steps(twin))) == 4
    assert all(torch.equal(value, twin.state_dict()[name]) for name, value in module.net.state_dict().items())


class Loaded(nn.Sequential):
    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        self.names = set(state_dict)
        return super().load_state_dict(state_dict, strict, assign)


@pytest.mark.parametrize("bias", [True, False])
def test_a_plain_checkpoint(bias: bool) -> None:
    shared = nn.Conv2d(8, 8, 3, padding=1)
    net = Loaded(
        nn.Conv2d(3, 8, 3, padding=1, bias=bias),
        nn.BatchNorm2d(8),
        nn.Sequential(shared, weight_norm(nn.Conv2d(8, 8, 3, padding=1)), shared),
        nn.ConvTranspose2d(8, 4, 3, 2, groups=2),
        nn.Flatten(2),
        nn.Linear(17 * 17, 5),
    ).eval()
    other = copy.deepcopy(net)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(torch.randn_like(parameter))
    loaded = cast(Loaded, smoe.convert(net, example_input=X, linear=True).eval())
    gates = {name: value.clone() for name, value in loaded.state_dict().items() if ".gate." in name}
    with pytest.raises(RuntimeError, match=r"that of a plain layer: load it before smoe\.convert, or") as refused:
        loaded.load_state_dict(other.state_dict())
    names = ("0.weight", "2.0.weight", "2.1.parametrizations.weight.original1", "2.2.weight", "3.weight", "5.weight")
    assert all(f"\t{name} is that of a plain layer" in str(refused.value) for name in names)
    with pytest.raises(ValueError, match=r"gate.order_code is that of a converted network: load it by converted"):
        smoe.nn.load_plain_state_dict(loaded, loaded.state_dict())
    smoe.nn.load_plain_state_dict(loaded, other.state_dict())
    assert loaded.names == set(loaded.state_dict())  # loaders of some networks refuse any other name
    torch.testing.assert_close(loaded(X), other(X), rtol=1e-4, atol=1e-4)
    assert all(torch.equal(value, gates[name]) for name, value in loaded.state_dict().items() if name in gates)
    with pytest.raises(ValueError, match=r"load the plain network before smoe\.convert"):
        smoe.nn.load_plain_state_dict(smoe.convert(net, example_input=X, order="index", rule="frozen"), {})


def test_linear_maps_of_nodes() -> None:
    models = pytest.importorskip("torch_geometric.nn.models")
    torch.manual_seed(0)
    nodes = torch.arange(10)
    ring = torch.stack([nodes, (nodes + 1) % 10])
    edges, x = torch.cat([ring, ring.flip(0)], dim=1), torch.randn(10, 3)
    net = models.GIN(3, 8, 2, 4).eval()
    with pytest.raises(ValueError, match="GINConv has no SMoE counterpart; linear=True takes its maps of nodes"):
        smoe.convert(net, example_input=(x, edges))
    new = smoe.convert(net, example_input=(x, edges), linear=True)
    sage = models.GraphSAGE(3, 8, 2, 4).eval()
    with pytest.raises(RuntimeError, match=r"convs\.0\.lin_l\.weight is that of a plain layer: load it before smoe\.c"):
        smoe.convert(sage, example_input=(x, edges)).load_state_dict(sage.state_dict())
    layers = [module for module in new.modules() if isinstance(module, smoe.nn.TokenMoE)]
    assert len(layers) == 4
    with torch.no_grad():
        for layer in layers:
            layer.weight.normal_()  # experts that differ
        both = new(torch.cat([x, x.flip(0)]), torch.cat([edges, edges + 10], dim=1))
        torch.testing.assert_close(both, torch.cat([new(x, edges), new(x.flip(0), edges)]))
    with pytest.raises(ValueError, match=r"gate's number of nodes, got shape \(11, 3\)"):
        layers[0](torch.randn(11, 3))
    with pytest.raises(ValueError, match="its rows are not the nodes"):
        smoe.convert(models.EdgeCNN(3, 8, 2, 4).eval(), example_input=(x, edges), linear=True)
