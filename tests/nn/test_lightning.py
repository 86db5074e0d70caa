"""The layer trains inside a Lightning Trainer without knowing of it."""

from __future__ import annotations

import copy
import importlib
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import smoe
from smoe.rules import RoutingClassification

RC = RoutingClassification.released()


def import_lightning() -> Any:
    try:
        return importlib.import_module("lightning.pytorch")
    except Exception as error:  # a torchvision of another build makes it raise all kinds
        pytest.skip(f"lightning cannot be imported here: {type(error).__name__}: {error}")


@pytest.mark.filterwarnings("ignore")  # Lightning's own advice and deprecations
def test_trains_as_in_a_plain_loop(tmp_path):
    lightning = import_lightning()
    torch.manual_seed(0)
    gate = smoe.TensorGate(4, 2, (6, 7))
    net = nn.Sequential(
        smoe.SpatialMoE2d.from_experts(1, 4, 2, gate=gate, rule=RC),
        nn.ReLU(inplace=True),
        smoe.SpatialMoE2d.from_experts(2, 4, 2, gate=gate, rule=RC),
    )
    twin = copy.deepcopy(net)
    start = copy.deepcopy(net.state_dict())
    data = TensorDataset(torch.randn(12, 1, 6, 7), torch.randn(12, 2, 6, 7))
    loader = DataLoader(data, batch_size=3)

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch, batch_index):
            x, target = batch
            return F.mse_loss(self.net(x), target)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.05)

    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(Module(), loader)
    assert trainer.global_step == 8

    optimizer = torch.optim.Adam(twin.parameters(), lr=0.05)
    for _ in range(2):
        for x, target in loader:
            optimizer.zero_grad()
            F.mse_loss(twin(x), target).backward()
            optimizer.step()
    for name, value in twin.state_dict().items():
        assert torch.equal(net.state_dict()[name], value), name
        assert name.endswith("order_code") or not torch.equal(value, start[name]), name
