"""The same training in one process and in several: run by `tests/distributed/test_two_processes.py`.

Here and not in the test file: a spawned process imports it by name.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import smoe
from smoe_paper.baselines.gates import ConvGate

NUM_STEPS, GLOBAL_BATCH = 4, 6


def make_net() -> nn.Module:
    """Two layers on one gate, and a third whose gate looks at its input."""
    torch.manual_seed(0)
    gate = smoe.TensorGate(4, 2, (6, 7))
    return nn.Sequential(
        smoe.SpatialMoE2d.from_experts(1, 4, 2, gate=gate),
        nn.Tanh(),
        smoe.SpatialMoE2d.from_experts(2, 4, 2, gate=gate, damping="damping(factor=0.1)"),
        nn.Tanh(),
        smoe.SpatialMoE2d.from_experts(2, 4, 2, gate=ConvGate(2, 4, 2), weighted=True),
    ).double()


def make_default_net(rule: str | None = None) -> nn.Sequential:
    """Two layers with the gates, rule and families of the defaults."""
    torch.manual_seed(0)
    layers = [smoe.SpatialMoE2d.from_experts(channels, 6, 2, spatial_shape=(6, 7), rule=rule) for channels in (1, 2)]
    for layer in layers:
        # Experts of a family start equal, which gives the gates nothing to learn.
        nn.init.normal_(layer.weight, std=0.3)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1]).double()


def train(net: nn.Module, samples: slice, num_steps: int = NUM_STEPS) -> None:
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(net.parameters(), lr=2.0, momentum=0.9)
    for _ in range(num_steps):
        x, target = (
            torch.randn(GLOBAL_BATCH, channels, 6, 7, dtype=torch.float64, generator=generator) for channels in (1, 2)
        )
        optimizer.zero_grad()
        F.mse_loss(net(x[samples]), target[samples]).backward()
        optimizer.step()


def run_process(rank: int, num_processes: int, port: int, directory: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", rank=rank, world_size=num_processes)
    try:
        train_share(rank, GLOBAL_BATCH // num_processes, Path(directory))
        # A wrapped net keeps the group's threads alive, and one of them may hold a tensor of the last broadcast. When
        # the interpreter ends before that thread does, it aborts the process: drop the nets, then wait for each other.
        gc.collect()
        distributed.barrier()
    finally:
        distributed.destroy_process_group()


def train_share(rank: int, share: int, directory: Path) -> None:
    first = make_default_net("straight_through(noise=0.0)")
    for name, net, num_steps in (("rc", make_net(), 4), ("first", first, 1), ("default", make_default_net(), 4)):
        wrapped = DistributedDataParallel(net)
        torch.manual_seed(rank)  # the processes draw different noise
        train(wrapped, slice(rank * share, (rank + 1) * share), num_steps)
        torch.save(net.state_dict(), directory / f"{name}-{rank}.pt")

    # An error that is not finite in one process is counted there, and still after the next forward pass.
    layer = smoe.SpatialMoE2d.from_experts(1, 3, 1, spatial_shape=(4, 4), rule="rc")
    parallel = DistributedDataParallel(layer)
    factor = torch.nan if rank == 1 else 1.0
    (parallel(torch.ones(2, 1, 4, 4)) * factor).sum().backward()
    with torch.no_grad():
        parallel(torch.ones(2, 1, 4, 4))
    assert layer._signal.num_nonfinite == (1 if rank == 1 else 0)
