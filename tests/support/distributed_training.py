"""The same training in one process and in several: run by `tests/distributed`.

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
from smoe.rules import Probing, RoutingClassification
from smoe_paper.baselines.gates import ConvGate
from smoe_paper.experiments.task import RoutingWarmup

NUM_STEPS, GLOBAL_BATCH, PROBING_BATCH = 4, 6, 4


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


def make_probing_net() -> nn.Sequential:
    """Two layers that share a gate, which learns by probing."""
    torch.manual_seed(0)
    gate = smoe.TensorGate(4, 2, (6, 7))
    rule = Probing(window=2)
    return nn.Sequential(
        smoe.SpatialMoE2d.from_experts(1, 4, 2, gate=gate, rule=rule),
        nn.Tanh(),
        smoe.SpatialMoE2d.from_experts(2, 4, 2, gate=gate, rule=rule),
    ).double()


def make_default_net(rule: str | None = None) -> nn.Sequential:
    """Two layers with the gates, rule and families of the defaults."""
    torch.manual_seed(0)
    layers = [smoe.SpatialMoE2d.from_experts(channels, 6, 2, spatial_shape=(6, 7), rule=rule) for channels in (1, 2)]
    for layer in layers:
        # Experts of a family start equal, which gives the gates nothing to learn.
        nn.init.normal_(layer.weight, std=0.3)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1]).double()


def make_warmed_net() -> nn.Sequential:
    """Two layers on a shared gate, and one with a gate of its own."""
    torch.manual_seed(0)
    gate = smoe.TensorGate(4, 2, (6, 7))
    rule = RoutingClassification.paper()
    return nn.Sequential(
        smoe.SpatialMoE2d.from_experts(1, 4, 2, gate=gate, rule=rule),
        nn.Tanh(),
        smoe.SpatialMoE2d.from_experts(2, 4, 2, gate=gate, rule=rule),
        nn.Tanh(),
        smoe.SpatialMoE2d.from_experts(2, 4, 2, spatial_shape=(6, 7), rule=rule),
    ).double()


def make_data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    shape = (NUM_STEPS, GLOBAL_BATCH)
    return (
        torch.randn(*shape, 1, 6, 7, dtype=torch.float64, generator=generator),
        torch.randn(*shape, 2, 6, 7, dtype=torch.float64, generator=generator),
    )


def train_warmed(net: nn.Module, warmup: RoutingWarmup, samples: slice) -> torch.Tensor:
    """Two epochs of warm-up and one after it; returns the scores of the third layer's gate after the warm-up."""
    optimizer = torch.optim.SGD(net.parameters(), lr=2.0, momentum=0.9)
    scores = torch.empty(0)
    for epoch in (1, 2, 3):
        warmup.begin_epoch(epoch)
        for x, target in zip(*make_data(), strict=True):
            optimizer.zero_grad()
            F.mse_loss(net(x[samples]), target[samples]).backward()
            optimizer.step()
        if epoch == 2:
            scores = next(value.clone() for name, value in net.state_dict().items() if name.endswith("4.gate.scores"))
    return scores


def train(net: nn.Module, samples: slice, num_steps: int = NUM_STEPS) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=2.0, momentum=0.9)
    for x, target in list(zip(*make_data(), strict=True))[:num_steps]:
        optimizer.zero_grad()
        F.mse_loss(net(x[samples]), target[samples]).backward()
        optimizer.step()


def run_process(rank: int, num_processes: int, port: int, directory: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", rank=rank, world_size=num_processes)
    try:
        train_share(rank, num_processes, Path(directory))
        # A wrapped net keeps the group's threads alive, and one of them may hold a tensor of the last broadcast. When
        # the interpreter ends before that thread does, it aborts the process: drop the nets, then wait for each other.
        gc.collect()
        distributed.barrier()
    finally:
        distributed.destroy_process_group()


def train_share(rank: int, num_processes: int, directory: Path) -> None:
    net = DistributedDataParallel(make_net())
    share = GLOBAL_BATCH // num_processes
    train(net, slice(rank * share, (rank + 1) * share))
    torch.save(net.module.state_dict(), directory / f"{rank}.pt")

    # An even share: the signs of a disturbance alternate over the samples.
    share = PROBING_BATCH // num_processes
    net = DistributedDataParallel(make_probing_net())
    train(net, slice(rank * share, (rank + 1) * share))
    torch.save(net.module.state_dict(), directory / f"probing-{rank}.pt")

    share = GLOBAL_BATCH // num_processes
    net = DistributedDataParallel(make_default_net("straight_through(noise=0.0)"))
    train(net, slice(rank * share, (rank + 1) * share), num_steps=1)
    torch.save(net.module.state_dict(), directory / f"default-first-{rank}.pt")
    net = DistributedDataParallel(make_default_net())
    torch.manual_seed(rank)  # the processes draw different noise
    train(net, slice(rank * share, (rank + 1) * share))
    torch.save(net.module.state_dict(), directory / f"default-{rank}.pt")

    warmed = make_warmed_net()
    # As the loop does: the warm-up belongs to the model, and begins when it is wrapped.
    warmup, net = RoutingWarmup(warmed, 2), DistributedDataParallel(warmed)
    share = GLOBAL_BATCH // num_processes
    before = train_warmed(net, warmup, slice(rank * share, (rank + 1) * share))
    torch.save({**warmed.state_dict(), "before": before}, directory / f"warmed-{rank}.pt")

    # An error that is not finite in one process is counted there, and still after the next forward pass.
    layer = smoe.SpatialMoE2d.from_experts(1, 3, 1, spatial_shape=(4, 4), rule="rc")
    parallel = DistributedDataParallel(layer)
    factor = torch.nan if rank == 1 else 1.0
    (parallel(torch.ones(2, 1, 4, 4)) * factor).sum().backward()
    with torch.no_grad():
        parallel(torch.ones(2, 1, 4, 4))
    assert layer._signal.num_nonfinite == (1 if rank == 1 else 0)
