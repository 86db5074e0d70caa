"""Networks whose parameters are sharded (FSDP2) train as networks that every process holds whole."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import torch
from torch import distributed, multiprocessing, nn

import smoe
from sharded_training import NETS, WRAPPERS, load_directory, make_net, resume_in_other_processes, run_process
from smoe.nn._sharding import _units

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="torch was built without distributed")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def assert_equal(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    # Each process has running statistics of its own.
    assert all(torch.equal(ours[name], value) for name, value in theirs.items() if "running" not in name)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_every_rule_trains_sharded_as_whole(tmp_path: Path) -> None:
    multiprocessing.spawn(run_process, args=(2, free_port(), str(tmp_path)), nprocs=2)
    results = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for name in NETS:
        start = make_net(name).state_dict()
        expected, num_whole = results[0][name, "whole"]
        is_trained = name != "frozen"
        has_moved = any("gate" in key and not torch.equal(value, start[key]) for key, value in expected.items())
        assert has_moved == is_trained, name
        for wrapper in WRAPPERS:
            for rank, result in enumerate(results):
                state, num_stored = result[name, wrapper]
                assert list(state) == list(expected)
                for key, value in expected.items():
                    # FSDP averages no buffers; those of a rule are equal by themselves.
                    if "running" not in key or rank == 0:
                        place = f"{name}, {wrapper}: {key}"
                        torch.testing.assert_close(state[key], value, rtol=1e-9, atol=1e-11, msg=place)
                # Uneven shards: at most one more row of each tensor than half of them.
                assert num_stored == num_whole if wrapper == "whole" else num_stored < 0.75 * num_whole
        for wrapper in ("one unit", "layers"):
            assert sum(result[name, wrapper][1] for result in results) == num_whole
        # What was sharded loads into one process, by its state_dict or from a directory that all processes wrote.
        single = make_net(name)
        single.load_state_dict(results[0][name, "layers"][0])
        assert_equal(single.state_dict(), results[0][name, "layers"][0])
        assert_equal(load_directory(make_net(name), tmp_path / name)[0].state_dict(), single.state_dict())
    restarted = results[0]["straight_through, restarts", "layers"][0]["0.weight"]
    start = make_net("straight_through, restarts").state_dict()["0.weight"]
    assert not torch.allclose(restarted[1], start[1], atol=0.3), "no expert was restarted"
    restarts = [results[0]["probe, restarts", "layers"][0][f"{layer}.gate.memory.num_restarts"] for layer in (0, 2)]
    assert max(restarts) > 0


@pytest.mark.slow
def test_four_processes_continue_what_two_have_stored(tmp_path: Path) -> None:
    for num_processes, work in ((2, run_process), (4, resume_in_other_processes)):
        multiprocessing.spawn(work, args=(num_processes, free_port(), str(tmp_path)), nprocs=num_processes)


def test_layers_that_share_parameters_are_one_unit() -> None:
    gates = [smoe.TensorGate(4, 2, (3, 4)) for _ in range(2)]
    layers = [smoe.SpatialMoE2d.from_experts(2, 4, 2, gate=gate, rule="rc") for gate in (*gates, *gates)]
    net = nn.Sequential(*layers, nn.Conv2d(2, 2, 1))
    assert _units(net) == [[layers[0], layers[2]], [layers[1], layers[3]]]


def test_sharding_needs_processes() -> None:
    with pytest.raises(RuntimeError, match="start them with torchrun"):
        smoe.nn.shard(nn.Linear(2, 2))
