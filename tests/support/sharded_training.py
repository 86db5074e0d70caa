"""Trains networks whole (DistributedDataParallel) and sharded (FSDP2): run by `tests/distributed/test_sharding.py`.

Here and not in the test file: a spawned process imports it by name.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import distributed, nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import smoe
from smoe.rules import Probing
from smoe_paper.baselines.gates import ConvGate

GRID = (6, 7)
NUM_STEPS, BATCH = 6, 8


def pair(first: nn.Module, second: nn.Module) -> nn.Sequential:
    for layer in (first, second):
        # Experts of a family start equal, which gives the gates nothing to learn.
        nn.init.normal_(layer.get_parameter("weight"), std=0.3)
    return nn.Sequential(first, nn.Tanh(), second).double()


def own_gates(rule: str | None = None, num_experts: int = 6, **options: Any) -> nn.Sequential:
    layers = [
        smoe.SpatialMoE2d.from_experts(c, num_experts, 2, spatial_shape=GRID, rule=rule, **options) for c in (1, 2)
    ]
    return pair(*layers)


def one_gate(rule: str, gate: smoe.SpatialGate | None = None, **options: Any) -> nn.Sequential:
    gate = smoe.TensorGate(5, 2, GRID) if gate is None else gate
    return pair(*(smoe.SpatialMoE2d.from_experts(c, 5, 2, gate=gate, rule=rule, **options) for c in (1, 2)))


def one_embedding() -> nn.Sequential:
    """Two gates that share what they know of the pixels, and a layer after them with a gate of its own."""
    embedding = smoe.PixelEmbedding(4, GRID, init="kaiming")
    gates = [smoe.FactorisedGate(4, 2, embedding=embedding) for _ in range(2)]
    net = pair(*(smoe.SpatialMoE2d.from_experts(c, 4, 2, gate=gate) for c, gate in zip((1, 2), gates, strict=True)))
    return nn.Sequential(net, smoe.SpatialMoE2d.from_experts(2, 3, 2, spatial_shape=GRID, local_affine=True)).double()


def idle_experts() -> nn.Sequential:
    """Experts that serve no pixel, and start anew; with noise that each process draws by itself."""
    net = own_gates("straight_through(noise=0.01, patience=2)", local_affine=True)
    with torch.no_grad():
        for gate in smoe.diagnostics.layers_by_gate(net):
            gate.get_buffer("embedding.values").fill_(1.0)
            gate.get_buffer("keys")[1::3] = -5.0
    return net


def families() -> nn.Sequential:
    gate = smoe.TensorGate(5, 2, GRID, order="families")
    return one_gate("straight_through(noise=0.0)", gate, weighted=True, expert_channels=1)


def own_unit_and_rest() -> nn.Sequential:
    """Layers of other kinds around an SMoE layer, with a gate that looks at its input."""
    gate = smoe.nn.NoisyGate(ConvGate(2, 3, 2), std=0.1)
    layer = smoe.SpatialMoE2d.from_experts(2, 3, 2, gate=gate, rule="rc", damping="damping(factor=0.1)", weighted=True)
    return nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), layer, nn.BatchNorm2d(2), nn.Conv2d(2, 2, 1)).double()


NETS: dict[str, Callable[[], nn.Module]] = {
    "rc, shared gate, damping": lambda: one_gate("rc", damping="damping(factor=0.1)"),
    "rc, own gates": lambda: own_gates("rc", order="score"),
    "end_to_end, weighted": lambda: one_gate("end_to_end", weighted=True),
    "straight_through, default": lambda: own_gates(),
    "straight_through, table of families": families,
    "straight_through, shared embedding": one_embedding,
    "straight_through, restarts": idle_experts,
    "probe, shared gate": lambda: one_gate(Probing(window=2)),  # type: ignore[arg-type]
    "probe, restarts": lambda: own_gates(Probing(window=2), 24),  # type: ignore[arg-type]
    "frozen": lambda: own_gates("frozen"),
    "other layers": own_unit_and_rest,
}
# Rules that draw nothing, and learn from all samples: their results do not depend on the number of processes.
DETERMINED = ("rc", "end_to_end", "frozen", "straight_through, default", "straight_through, shared embedding")
WRAPPERS: dict[str, Callable[..., Any]] = {
    "whole": DistributedDataParallel,
    "one unit": fully_shard,
    "layers": smoe.nn.shard,
}


def make_net(name: str) -> nn.Module:
    torch.manual_seed(0)
    return NETS[name]()


def make_data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    shape = (NUM_STEPS, BATCH)
    return (
        torch.randn(*shape, 1, *GRID, dtype=torch.float64, generator=generator),
        torch.randn(*shape, 2, *GRID, dtype=torch.float64, generator=generator),
    )


def train(net: nn.Module, share: slice, optimizer: torch.optim.Optimizer | None = None) -> torch.optim.Optimizer:
    """Steps with clipped gradients; every other one of two batches."""
    optimizer = optimizer or torch.optim.Adam(net.parameters(), lr=0.05)
    for step, (x, target) in enumerate(zip(*make_data(), strict=True)):
        (F.mse_loss(net(x[share]), target[share]) * 100.0).backward()
        if step % 2:
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return optimizer


def whole_state(net: nn.Module) -> dict[str, torch.Tensor]:
    state = net.module.state_dict() if isinstance(net, DistributedDataParallel) else net.state_dict()
    return {name: value.full_tensor() if isinstance(value, DTensor) else value.clone() for name, value in state.items()}


def num_stored(net: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Numbers that this process holds: parameters and what the optimiser keeps for each."""
    kept = [value for state in optimizer.state.values() for value in state.values()]
    values = [*net.parameters(), *(value for value in kept if isinstance(value, torch.Tensor) and value.ndim > 0)]
    return sum((value.to_local() if isinstance(value, DTensor) else value).numel() for value in values)


def run_process(rank: int, num_processes: int, port: int, directory: str) -> None:
    """What each of several processes does."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", rank=rank, world_size=num_processes)
    share = slice(rank, None, num_processes)
    try:
        results: dict[tuple[str, str], Any] = {}
        for name in NETS:
            for wrapper, wrap in WRAPPERS.items():
                net = wrap(make_net(name))
                torch.manual_seed(rank)  # the processes draw different noise
                optimizer = train(net, share)
                results[name, wrapper] = (whole_state(net), num_stored(net, optimizer))
                if wrap is smoe.nn.shard:
                    check_directory(name, net, optimizer, Path(directory) / name)
                del net, optimizer
        torch.save(results, Path(directory) / f"{rank}.pt")
        check_precision(share)
        check_access(share)
        gc.collect()
        distributed.barrier()
    finally:
        distributed.destroy_process_group()


def load_directory(net: nn.Module, folder: Path) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Loads what `torch.distributed.checkpoint` has stored, in one process or several, sharded or not."""
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    model, kept = get_state_dict(net, optimizer)
    checkpoint.load({"model": model, "optimizer": kept}, checkpoint_id=folder)
    set_state_dict(net, optimizer, model_state_dict=model, optim_state_dict=kept)
    return net, optimizer


def check_directory(name: str, net: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    """A directory of `torch.distributed.checkpoint`: training goes on from it as if it had not been stopped."""
    model, kept = get_state_dict(net, optimizer)
    checkpoint.save({"model": model, "optimizer": kept}, checkpoint_id=folder)
    rank, num_processes = distributed.get_rank(), distributed.get_world_size()
    stored = whole_state(net)
    if rank == 0:
        torch.save(stored, folder / "stored.pt")
    states = []
    for each, used in ((net, optimizer), load_directory(smoe.nn.shard(make_net(name)), folder)):
        torch.manual_seed(rank)
        train(each, slice(rank, None, num_processes), used)
        states.append(whole_state(each))
    if rank == 0:
        torch.save(states[0], folder / "continued.pt")
    for key, value in states[0].items():
        # Each process has running statistics of its own; those of one of them are stored.
        if "running" not in key:
            assert torch.equal(states[1][key], value), f"{name}: {key}"


def resume_in_other_processes(rank: int, num_processes: int, port: int, directory: str) -> None:
    """What each of more processes does: it continues what fewer have stored."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", rank=rank, world_size=num_processes)
    try:
        for name in NETS:
            net, optimizer = load_directory(smoe.nn.shard(make_net(name)), Path(directory) / name)
            for key, value in torch.load(Path(directory) / name / "stored.pt").items():
                assert "running" in key or torch.equal(whole_state(net)[key], value), f"{name}: {key}"
            torch.manual_seed(rank)
            train(net, slice(rank, None, num_processes), optimizer)
            state, expected = whole_state(net), torch.load(Path(directory) / name / "continued.pt")
            assert state.keys() == expected.keys()
            if name.startswith(DETERMINED):
                for key, value in expected.items():
                    if "running" not in key:
                        torch.testing.assert_close(state[key], value, rtol=1e-9, atol=1e-11, msg=f"{name}: {key}")
        gc.collect()
        distributed.barrier()
    finally:
        distributed.destroy_process_group()


def check_precision(share: slice) -> None:
    """Autocast and a loss scaler: sharded as whole."""
    states = []
    for wrap in WRAPPERS.values():
        net = wrap(make_net("rc, own gates").float())
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=2)
        x, target = (values[0][share].float() for values in make_data())
        for _ in range(4):
            with torch.autocast("cpu", torch.bfloat16):
                loss = smoe.nn.track_loss_scale(F.mse_loss(net(x).float(), target), net)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        states.append((whole_state(net), scaler.get_scale()))
    start = make_net("rc, own gates").state_dict()
    for state, scale in states[1:]:
        assert scale == states[0][1]
        for name, value in states[0][0].items():
            torch.testing.assert_close(state[name], value, rtol=1e-4, atol=1e-5, msg=name)
    assert not torch.allclose(states[0][0]["0.weight"], start["0.weight"].float())


def check_access(share: slice) -> None:
    """A gate outside a pass is refused in one line, and can be read where parameters are whole."""
    net = smoe.nn.shard(own_gates("rc", order="score"))
    layer = net[0]
    assert isinstance(layer, smoe.SpatialMoE2d)
    for read in (layer.routing, lambda: smoe.describe(net)):
        with pytest.raises(RuntimeError, match=r"use it inside `with smoe.nn.unsharded\(model\):`"):
            read()
    with smoe.nn.unsharded(net):
        expected = layer.routing().indices
        assert len(smoe.describe(net).gates) == 2
    assert expected.shape == (2, *GRID)
    x, target = (values[0][share] for values in make_data())
    loss = F.mse_loss(net(x), target)
    with pytest.raises(RuntimeError, match="reshard_after_forward=False"):
        _ = layer._scored_routing()
    loss.backward()

    # A loss of the routing: with parameters that stay between forward and backward.
    gradients = []
    for wrap in (DistributedDataParallel, lambda net: smoe.nn.shard(net, reshard_after_forward=False)):
        model = wrap(make_net("rc, own gates"))
        loss = F.mse_loss(model(x), target) + smoe.losses.auxiliary_loss(model, importance=True, weight=1.0)
        loss.backward()
        inner = model.module if isinstance(model, DistributedDataParallel) else model
        grads = [parameter.grad for parameter in inner.parameters()]
        gradients.append([grad.full_tensor() if isinstance(grad, DTensor) else grad for grad in grads])
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs)
