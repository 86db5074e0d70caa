"""Networks that every process holds whole train as in one process, and networks that are sharded (FSDP2) as these."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import distributed, multiprocessing, nn

import smoe
from resumable_training import free_port
from sharded_training import CASES, load_directory, make_net, run_process
from smoe.nn._sharding import _units

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="torch was built without distributed")


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_every_rule_geometry_and_gate_trains_sharded_as_whole(tmp_path: Path) -> None:
    multiprocessing.spawn(run_process, args=(2, free_port(), str(tmp_path)), nprocs=2)
    # What was sharded loads into one process.
    for name, case in CASES.items():
        if case.is_stored:
            net = load_directory(make_net(case), tmp_path / name)[0]
            stored = torch.load(tmp_path / name / "states.pt")
            assert all(torch.equal(value, stored[key]) for key, value in net.state_dict().items())


def test_layers_that_share_parameters_are_one_unit() -> None:
    gates = [smoe.TensorGate(4, 2, (3, 4)) for _ in range(2)]
    layers = [smoe.SpatialMoE2d.from_experts(2, 4, 2, gate=gate, rule="rc") for gate in (*gates, *gates)]
    net = nn.Sequential(*layers, nn.Conv2d(2, 2, 1))
    assert _units(net) == [[layers[0], layers[2]], [layers[1], layers[3]]]
    with pytest.raises(RuntimeError, match="start them with torchrun"):
        smoe.nn.shard(net)
