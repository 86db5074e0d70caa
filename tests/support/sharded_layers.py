"""Layers of every geometry and gates of every kind, whole and sharded: run by `test_sharded_layers.py`.

Here and not in the test file: a spawned process imports it by name.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import smoe
from sharded_training import whole_state
from smoe.nn import _gate as banded
from smoe.training.distribution import WeightAverage
from smoe.training.plan import TrainingPlan
from smoe_paper.baselines.gates import CoordConvGate, LinearGate, LocallyConnectedGate

GRID = (6, 7)
NUM_STEPS, BATCH = 6, 4


class OnGraph(nn.Module):
    """Two layers on a ring of nodes that share a gate; what follows the first one changes its output in place."""

    def __init__(self) -> None:
        super().__init__()
        nodes = torch.arange(12)
        self.edges = torch.stack([nodes, nodes.roll(1)])
        gate = smoe.TensorGate(5, 2, (12,))
        self.first, self.second = (smoe.GraphMoE.from_experts(channels, 5, 2, gate=gate) for channels in (1, 2))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return torch.stack([self.second(self.first(x, self.edges).tanh_(), self.edges) for x in input])


def layers(kind: Any, **options: Any) -> nn.Sequential:
    """Two layers that share a gate, and one with a gate of its own."""
    first = kind.from_experts(1, 5, 2, **options)
    second = kind.from_experts(
        2, 5, 2, gate=first.gate, **{name: value for name, value in options.items() if name == "nside"}
    )
    return nn.Sequential(first, nn.Tanh(), second, kind.from_experts(2, 3, 2, **options))


def with_gate(gate: smoe.SpatialGate, rule: str | None = None) -> nn.Sequential:
    """A layer between others, of which the last one has one row: a second process holds none of it."""
    layer = smoe.SpatialMoE2d.from_experts(2, gate.num_experts, gate.num_selected, gate=gate, rule=rule)
    return nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), layer, nn.Conv2d(gate.num_selected, 1, 1))


def converted(**options: Any) -> nn.Module:
    plain = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4),
        nn.ReLU(), nn.Conv2d(4, 2, 1),
    )  # fmt: skip
    return smoe.convert(plain, example_input=torch.zeros(2, 1, *GRID), local_affine=True, **options)


@dataclass(frozen=True)
class Case:
    """A network and the shape of a sample.

    Attributes:
        net: Makes the network.
        shape: Shape of a sample.
        learns: Whether a gate learns.
        bands: Scores that a gate holds at a time, to make small gates work as large ones do.
        compiled: Compile the passes.
    """

    net: Callable[[], nn.Module]
    shape: tuple[int, ...] = (1, *GRID)
    learns: bool = True
    bands: int = 1 << 25
    compiled: bool = False


CASES = {
    "line": Case(lambda: layers(smoe.SpatialMoE1d, spatial_shape=(9,)), (1, 9)),
    "volume": Case(lambda: layers(smoe.SpatialMoE3d, spatial_shape=(3, 4, 5)), (1, 3, 4, 5)),
    "HEALPix": Case(lambda: layers(smoe.HEALPixMoE, nside=2), (1, 48)),
    "graph": Case(OnGraph, (12, 1)),
    "local_affine": Case(lambda: layers(smoe.SpatialMoE2d, spatial_shape=GRID, local_affine=True)),
    "coarse gate": Case(lambda: with_gate(smoe.CoarseGate(6, 2, GRID, factor=2))),
    "factorised gate": Case(lambda: with_gate(smoe.FactorisedGate(6, 2, GRID))),
    "convolutional gate": Case(lambda: with_gate(CoordConvGate(2, 4, 2), "rc")),
    "linear gate": Case(lambda: with_gate(LinearGate(2, 4, 2, GRID), "rc")),
    "locally connected gate": Case(lambda: with_gate(LocallyConnectedGate(2, 4, 2, GRID), "rc")),
    "decided gate": Case(lambda: with_gate(smoe.DecidedGate(torch.zeros(1, *GRID, dtype=torch.long), 4)), learns=False),
    "converted": Case(lambda: converted(share_gates=True)),
    "gates with one embedding": Case(converted),
}
CASES |= {
    f"{name}, in bands": replace(CASES[name], bands=40)
    for name in ("line", "coarse gate", "factorised gate", "gates with one embedding")
}
CASES["compiled"] = replace(CASES["convolutional gate"], compiled=True)


def shard_children(net: nn.Module) -> nn.Module:
    """Some units are the user's, and `smoe.nn.shard` makes the rest."""
    for name in ("0", "1", "3"):
        if name in net._modules:
            fully_shard(net.get_submodule(name))
    return smoe.nn.shard(net)


WRAPPERS: dict[str, Callable[..., Any]] = {
    "whole": DistributedDataParallel,
    "one unit": fully_shard,
    "layers": smoe.nn.shard,
    "own units": shard_children,
}


def make_net(case: Case) -> nn.Module:
    torch.manual_seed(0)
    net = case.net().double()
    for parameter in net.parameters():
        # Experts of a family start equal, which gives the gates nothing to learn.
        nn.init.normal_(parameter, std=0.3)
    return net


def train(case: Case, wrapper: str, rank: int, num_processes: int) -> dict[str, torch.Tensor]:
    """Steps of two parts with clipped gradients; returns the weights and their moving average."""
    plain = make_net(case)
    average = WeightAverage(plain, TrainingPlan(average_every=1, average_decay=0.9, batch_size=1, max_epochs=1))
    net = WRAPPERS[wrapper](plain)
    average.model = average.model if wrapper == "whole" else smoe.nn.shard(average.model)
    if case.compiled:
        net.compile(backend="aot_eager")
    torch.manual_seed(rank)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    generator = torch.Generator().manual_seed(1)
    for step in range(NUM_STEPS):
        x = torch.randn(BATCH, *case.shape, dtype=torch.float64, generator=generator)[rank::num_processes]
        (net(x) - x.sum().sin()).square().mean().mul(10.0).backward()
        if step % 2:
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            average.observe(plain, 2, step // 2 + 1)
    averaged = {f"average {name}": value for name, value in whole_state(average.model).items()}
    return {**whole_state(net), **averaged}


def run_process(rank: int, num_processes: int, port: int) -> None:
    """What each of several processes does."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", rank=rank, world_size=num_processes)
    try:
        for name, case in CASES.items():
            check_case(name, case, rank, num_processes)
        check_mistakes()
        gc.collect()
        distributed.barrier()
    finally:
        distributed.destroy_process_group()


def check_case(name: str, case: Case, rank: int, num_processes: int) -> None:
    banded._MAX_SCORES = case.bands
    start, expected = make_net(case).state_dict(), train(case, "whole", rank, num_processes)
    learned = [key for key in start if "gate" in key and not torch.equal(expected[key], start[key])]
    assert bool(learned) == case.learns, f"{name}: {learned}"
    for wrapper in list(WRAPPERS)[1:]:
        if wrapper == "own units" and "gate" not in name:
            continue  # layers that share a gate must be one unit
        state = train(case, wrapper, rank, num_processes)
        assert state.keys() == expected.keys()
        for key, value in expected.items():
            # FSDP averages no buffers.
            if "running" not in key:
                place = f"{name}, {wrapper}: {key}"
                torch.testing.assert_close(state[key], value, rtol=1e-9, atol=1e-11, msg=place)


def check_mistakes() -> None:
    """A gate of parameters in units of two layers is refused in one line."""
    gate = smoe.TensorGate(5, 2, GRID)
    net = nn.Sequential(*(smoe.SpatialMoE2d.from_experts(c, 5, 2, gate=gate, rule="rc") for c in (1, 2)))
    fully_shard(net.get_submodule("0"))
    with pytest.raises(RuntimeError, match="1 of 2 layers that share a gate are sharded already"):
        smoe.nn.shard(net)
