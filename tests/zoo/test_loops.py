"""Training loops and tools of other packages, with layers they know nothing of: `make zoo` installs them."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

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


def test_ignite_trains_as_a_loop_does() -> None:
    load("ignite")
    net, twin = Net(), Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    engine = importlib.import_module("ignite.engine")
    engine.create_supervised_trainer(net, optimizer, F.mse_loss).run([(X, TARGET)] * 5, max_epochs=1)
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
