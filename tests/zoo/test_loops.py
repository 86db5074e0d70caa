"""Training loops and tools of other packages, with layers they know nothing of: `make zoo` installs them."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize

import smoe
from other_packages import load

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

X = torch.randn(16, 2, 8, 8, generator=torch.Generator().manual_seed(0))
TARGET = torch.where(torch.arange(8) < 4, X, -X)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = smoe.SpatialMoE2d(2, 4, spatial_shape=(8, 8))
        self.second = smoe.SpatialMoE2d(4, 2, spatial_shape=(8, 8))

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor | dict[str, torch.Tensor]:
        y = self.second(self.first(x).relu())
        return y if labels is None else {"loss": F.mse_loss(y, labels), "logits": y}


def same(net: nn.Module, other: nn.Module) -> bool:
    pairs = zip(net.state_dict().items(), other.state_dict().items(), strict=True)
    return all(name == twin and torch.equal(value, its) for (name, value), (twin, its) in pairs)


def test_hugging_face_trainer_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    load("torchvision")  # with its stubs
    transformers = load("transformers")
    data = [{"x": x, "labels": labels} for x, labels in zip(X, TARGET, strict=True)]

    def train(num_steps: int, folder: str, resume: Path | None = None) -> Net:
        net = Net()
        options = transformers.TrainingArguments(
            output_dir=tmp_path / folder,
            max_steps=num_steps,
            save_steps=4,
            per_device_train_batch_size=4,
            learning_rate=1e-2,
            lr_scheduler_type="constant",
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
        )
        transformers.Trainer(model=net, args=options, train_dataset=data).train(resume_from_checkpoint=resume)
        return net

    whole = train(8, "whole")
    train(4, "half")
    assert same(whole, train(8, "rest", tmp_path / "half" / "checkpoint-4"))
    start = Net().state_dict()
    assert not torch.equal(whole.state_dict()["first.gate.embedding.values"], start["first.gate.embedding.values"])


@pytest.mark.parametrize("package", ["ignite", "accelerate"])
def test_others_train_as_a_loop_does(package: str) -> None:
    load(package)
    net, twin = Net(), Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    if package == "ignite":
        engine = importlib.import_module("ignite.engine")
        engine.create_supervised_trainer(net, optimizer, F.mse_loss).run([(X, TARGET)] * 5, max_epochs=1)
    else:
        accelerator = importlib.import_module("accelerate").Accelerator(cpu=True)
        prepared, prepared_optimizer = accelerator.prepare(net, optimizer)
        for _ in range(5):
            prepared_optimizer.zero_grad()
            accelerator.backward(F.mse_loss(prepared(X), TARGET))
            prepared_optimizer.step()
    optimizer = torch.optim.Adam(twin.parameters(), lr=1e-2)
    for _ in range(5):
        optimizer.zero_grad()
        F.mse_loss(twin(X), TARGET).backward()
        optimizer.step()
    assert same(net, twin)


def test_torchao_takes_the_other_layers() -> None:
    load("torchao")
    quantization = importlib.import_module("torchao.quantization")
    torch.manual_seed(0)
    net = nn.Sequential(smoe.SpatialMoE2d(2, 32, spatial_shape=(8, 8)), nn.Flatten(), nn.Linear(2048, 8)).eval()
    before = net(X)
    quantization.quantize_(net, quantization.Int8WeightOnlyConfig())
    assert type(net[2].weight) is not nn.Parameter and type(net[0].weight) is nn.Parameter
    assert float((net(X) - before).abs().max()) < 0.02 * float(before.abs().max())


class Int8(nn.Module):
    """Experts as rows of a matrix of eight bits with a factor for each row, by torchao."""

    def __init__(self, shape: torch.Size) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, rows: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        return (rows * factors).view(self.shape)

    def right_inverse(self, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        quantization = importlib.import_module("torchao.quantization")
        linear = nn.Linear(weight[0].numel(), len(weight), bias=False)
        linear.weight = nn.Parameter(weight.flatten(1))
        quantization.quantize_(linear, quantization.Int8WeightOnlyConfig())
        return linear.weight.qdata, linear.weight.scale  # type: ignore[return-value]


def test_torchao_takes_the_experts_as_a_parametrisation() -> None:
    load("torchao")
    net = Net().eval().requires_grad_(False)
    before = net(X)
    for layer in (net.first, net.second):
        parametrize.register_parametrization(layer, "weight", Int8(layer.weight.shape), unsafe=True)
    assert net.state_dict()["first.parametrizations.weight.original0"].dtype == torch.int8
    assert float((net(X) - before).abs().max()) < 0.02 * float(before.abs().max())  # type: ignore[operator,union-attr]


def test_fvcore_counts_what_it_is_told_of() -> None:
    load("fvcore")
    counters, handles = importlib.import_module("fvcore.nn"), importlib.import_module("fvcore.nn.jit_handles")
    shape = handles.get_shape

    def count(inputs: list[Any], outputs: list[Any]) -> int:
        return math.prod(shape(outputs[0])) * math.prod(shape(inputs[1])[1:])

    net = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 2, 3, padding=1)).eval()
    analysis = counters.FlopCountAnalysis(smoe.convert(net, example_input=X).eval(), X)
    analysis.set_op_handle("smoe::routed_conv2d", count)
    assert analysis.by_operator()["routed_conv2d"] == counters.FlopCountAnalysis(net, X).by_operator()["conv"]
