from __future__ import annotations

import socket

import pytest
import torch
from torch import distributed, multiprocessing

from distributed_training import (
    PROBING_BATCH,
    make_default_net,
    make_net,
    make_probing_net,
    make_warmed_net,
    run_process,
    train,
    train_warmed,
)
from smoe_paper.experiments.task import RoutingWarmup

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="torch was built without distributed")


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def test_two_processes_train_as_one_with_the_same_global_batch(tmp_path):
    expected = make_net()
    start = {name: value.clone() for name, value in expected.state_dict().items()}
    train(expected, slice(None))
    multiprocessing.spawn(run_process, args=(2, free_port(), str(tmp_path)), nprocs=2)
    states = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for name, value in expected.state_dict().items():
        assert not value.is_floating_point() or not torch.allclose(value, start[name], atol=1e-4), name
        assert torch.equal(states[0][name], states[1][name]), name
        torch.testing.assert_close(states[0][name], value, rtol=1e-10, atol=1e-12, msg=name)
    probing = make_probing_net()
    start = gate_scores(probing)
    train(probing, slice(PROBING_BATCH))
    states = [torch.load(tmp_path / f"probing-{rank}.pt") for rank in range(2)]
    for name, value in probing.state_dict().items():
        assert torch.equal(states[0][name], states[1][name]), name
        # What the processes collect is measured by their own mean losses; what they decide is the same.
        if "memory" not in name and "learner" not in name:
            torch.testing.assert_close(states[0][name], value, rtol=1e-4, atol=1e-6, msg=name)
    assert not torch.equal(gate_scores(probing), start)

    # The first update of the experts is that of one process; gates learn from the samples of each process.
    expected = make_default_net("straight_through(noise=0.0)")
    train(expected, slice(None), num_steps=1)
    states = [torch.load(tmp_path / f"default-first-{rank}.pt") for rank in range(2)]
    for name, value in expected.state_dict().items():
        assert torch.equal(states[0][name], states[1][name]), name
        if name.endswith(("weight", "bias")):
            torch.testing.assert_close(states[0][name], value, rtol=1e-10, atol=1e-12, msg=name)
    start = make_default_net().state_dict()
    states = [torch.load(tmp_path / f"default-{rank}.pt") for rank in range(2)]
    for name, value in start.items():
        assert torch.equal(states[0][name], states[1][name]), name
        assert not value.is_floating_point() or states[0][name].isfinite().all(), name
    assert any("gate" in name and not torch.equal(states[0][name], value) for name, value in start.items())

    warmed = make_warmed_net()
    start = warmed.state_dict()["4.gate.scores"].clone()
    before = train_warmed(warmed, RoutingWarmup(warmed, 2), slice(None))
    states = [torch.load(tmp_path / f"warmed-{rank}.pt") for rank in range(2)]
    assert torch.equal(before, start) and torch.equal(states[0]["before"], start)
    assert not torch.equal(warmed.state_dict()["4.gate.scores"], start)
    for name, value in warmed.state_dict().items():
        assert torch.equal(states[0][name], states[1][name]), name
        torch.testing.assert_close(states[0][name], value, rtol=1e-10, atol=1e-12, msg=name)


def gate_scores(net: torch.nn.Module) -> torch.Tensor:
    return net.state_dict()["0.gate.scores"].clone()
