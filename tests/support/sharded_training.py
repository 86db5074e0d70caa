"""Trains networks in several processes, whole (DistributedDataParallel) and sharded (FSDP2); see `tests/distributed`.

Here and not in the test file: a spawned process imports it by name.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from dataclasses import dataclass
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
from smoe.nn import _gate as banded
from smoe.nn._sharding import _units
from smoe_paper.baselines.layers import ConvGate, LinearGate
from smoe_paper.baselines.routing_losses import ScoreGate, auxiliary_loss

GRID = (6, 7)
NUM_STEPS, BATCH = 6, 8


class OnGraph(nn.Module):
    """Two layers on a ring of nodes that share a gate; what follows the first one changes its output in place."""

    def __init__(self) -> None:
        super().__init__()
        nodes = torch.arange(12)
        self.edges = torch.stack([nodes, nodes.roll(1)])
        gate = smoe.TensorGate(5, 2, (12,))
        self.first, self.second = (smoe.GraphMoE.from_experts(channels, 5, 2, gate=gate) for channels in (1, 2))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Nodes of each sample to outputs."""
        return torch.stack([self.second(self.first(x, self.edges).tanh_(), self.edges) for x in input])


def layers(kind: Any = smoe.SpatialMoE2d, **options: Any) -> nn.Sequential:
    """Two layers that share a gate, and one with a gate of its own."""
    options = options if "nside" in options else {"spatial_shape": GRID, **options}
    first = kind.from_experts(1, 5, 2, **options)
    shared = {name: value for name, value in options.items() if name not in ("spatial_shape", "order")}
    second = kind.from_experts(2, 5, 2, gate=first.gate, **shared)
    return nn.Sequential(first, nn.Tanh(), second, kind.from_experts(2, 3, 2, **options))


def with_gate(gate: smoe.SpatialGate, **options: Any) -> nn.Sequential:
    """A layer between others, of which the last one has one row: a second process holds none of it."""
    layer = smoe.SpatialMoE2d.from_experts(2, gate.num_experts, gate.num_selected, gate=gate, **options)
    norm = smoe.nn.SharedBatchNorm2d(gate.num_selected)
    return nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), layer, norm, nn.Conv2d(gate.num_selected, 1, 1))


def looking() -> nn.Module:
    """Gates of parameters only, and one that looks at its input."""
    net = layers(rule="rc", order="score", damping="damping(factor=0.1)")
    return net.append(smoe.SpatialMoE2d.from_experts(2, 4, 2, gate=ConvGate(2, 4, 2), rule="rc", weighted=True))


def converted() -> nn.Module:
    """Gates that share an embedding."""
    plain = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 2, 1))
    return smoe.convert(plain, example_input=torch.zeros(2, 1, *GRID))


@dataclass(frozen=True)
class Case:
    """A network and the shape of a sample.

    Attributes:
        net: Makes the network.
        shape: Shape of a sample.
        learns: Whether a gate learns.
        as_one: Names of the tensors that one process with the whole batch trains alike.
        num_steps: Number of batches.
        bands: Scores that a gate holds at a time, to make small gates work as large ones do.
        is_stored: Store it by `torch.distributed.checkpoint`.
        compiled: Compile the passes.
    """

    net: Callable[[], nn.Module]
    shape: tuple[int, ...] = (1, *GRID)
    learns: bool = True
    as_one: str = "nothing"
    num_steps: int = NUM_STEPS
    bands: int = 1 << 25
    is_stored: bool = False
    compiled: bool = False


CASES = {
    "default": Case(layers, is_stored=True),
    "rc, damping": Case(lambda: layers(rule="rc", order="score", damping="damping(factor=0.1)"), is_stored=True),
    "rc, looks at the input": Case(looking, as_one=""),
    "end_to_end, weighted": Case(lambda: layers(rule="end_to_end", weighted=True), as_one=""),
    # Experts only: the gates of each process learn from its own samples.
    "first update": Case(lambda: layers(rule="straight_through(noise=0.0)"), as_one="weight", num_steps=2),
    "table of families": Case(lambda: with_gate(smoe.TensorGate(5, 2, GRID, order="families"))),
    "frozen": Case(lambda: layers(rule="frozen"), learns=False),
    "line, in bands": Case(lambda: layers(smoe.SpatialMoE1d, spatial_shape=(9,)), (1, 9), bands=40),
    "volume": Case(lambda: layers(smoe.SpatialMoE3d, spatial_shape=(3, 4, 5)), (1, 3, 4, 5)),
    "HEALPix": Case(lambda: layers(smoe.HEALPixMoE, nside=2), (1, 48)),
    "graph": Case(OnGraph, (12, 1)),
    "noisy gate": Case(lambda: with_gate(ScoreGate(ConvGate(2, 3, 2), std=0.1), rule="rc", weighted=True)),
    "linear gate": Case(lambda: with_gate(LinearGate(2, 4, 2, GRID), rule="rc"), compiled=True),
    "decided gate": Case(
        lambda: with_gate(smoe.DecidedGate(torch.zeros(1, *GRID, dtype=torch.long), 4)), learns=False, as_one=""
    ),
    "one embedding": Case(converted, is_stored=True),
}


def shard_each(net: nn.Module) -> nn.Module:
    """As users do: each layer is a unit, unless layers share parameters; the rest is one."""
    layers = [module for module in net.modules() if isinstance(module, smoe.nn.RoutedLayer)]
    if len(_units(net)) < len(layers):
        return smoe.nn.shard(net)
    for each in (*layers, net):
        fully_shard(each)
    return net


WRAPPERS: dict[str, Callable[..., Any]] = {
    "whole": DistributedDataParallel,
    "one unit": fully_shard,
    "layers": smoe.nn.shard,
    "each layer": shard_each,
}


def make_net(case: Case) -> nn.Module:
    torch.manual_seed(0)
    net = case.net().double()
    for parameter in net.parameters():
        # Experts of a family start equal, which gives the gates nothing to learn.
        nn.init.normal_(parameter, std=0.3)
    return net


def train(net: nn.Module, case: Case, share: slice, optimizer: Any = None) -> torch.optim.Optimizer:
    """Steps of two parts with clipped gradients."""
    optimizer = optimizer or torch.optim.Adam(net.parameters(), lr=0.02)
    generator = torch.Generator().manual_seed(1)
    torch.manual_seed(distributed.get_rank())  # the processes draw different noise
    for step in range(case.num_steps):
        x = torch.randn(BATCH, *case.shape, dtype=torch.float64, generator=generator)[share]
        target = x.flatten(1).sum(dim=1).sin().view(-1, *(1,) * len(case.shape))
        (net(x) - target).square().mean().mul(10.0).backward()
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


def assert_same(
    ours: dict[str, torch.Tensor],
    theirs: dict[str, torch.Tensor],
    place: str,
    *,
    rtol: float = 1e-9,
    atol: float = 1e-11,
) -> None:
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        # Each process has running statistics of its own; FSDP averages no buffers.
        if "running" not in key:
            torch.testing.assert_close(ours[key], value, rtol=rtol, atol=atol, msg=f"{place}: {key}")


def run_process(rank: int, num_processes: int, port: int, directory: str) -> None:
    """What each of several processes does."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", rank=rank, world_size=num_processes)
    share = slice(rank, None, num_processes)
    try:
        for name, case in CASES.items():
            banded._MAX_SCORES = case.bands
            check_case(name, case, share, Path(directory) / name)
        check_precision(share)
        check_access(share)
        gc.collect()
        distributed.barrier()
    finally:
        distributed.destroy_process_group()


def check_case(name: str, case: Case, share: slice, folder: Path) -> None:
    """A network trains sharded as whole."""
    start, expected, num_whole = make_net(case).state_dict(), {}, 0
    for wrapper, wrap in WRAPPERS.items():
        net = wrap(make_net(case))
        if case.compiled:
            net.compile(backend="aot_eager")
        optimizer = train(net, case, share)
        state = whole_state(net)
        if wrapper == "whole":
            expected, num_whole = state, num_stored(net, optimizer)
            train(alone := make_net(case), case, slice(None))
            same = {key: value for key, value in alone.state_dict().items() if case.as_one in key}
            assert_same({key: state[key] for key in same}, same, f"{name}, one process")
            learned = [key for key in start if "gate" in key and not torch.equal(expected[key], start[key])]
            assert bool(learned) == case.learns, f"{name}: {learned}"
            continue
        assert_same(state, expected, f"{name}, {wrapper}")
        # Uneven shards: at most one more row of each tensor than half of them.
        assert num_stored(net, optimizer) < 0.8 * num_whole, name
        if wrapper == "layers" and case.is_stored:
            check_directory(name, case, net, optimizer, share, folder)


def load_directory(net: nn.Module, folder: Path) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Loads what `torch.distributed.checkpoint` has stored, in one process or several, sharded or not."""
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    model, kept = get_state_dict(net, optimizer)
    checkpoint.load({"model": model, "optimizer": kept}, checkpoint_id=folder)
    set_state_dict(net, optimizer, model_state_dict=model, optim_state_dict=kept)
    return net, optimizer


def check_directory(name: str, case: Case, net: nn.Module, optimizer: Any, share: slice, folder: Path) -> None:
    """A directory of `torch.distributed.checkpoint`: training goes on from it as if it had not been stopped."""
    model, kept = get_state_dict(net, optimizer)
    checkpoint.save({"model": model, "optimizer": kept}, checkpoint_id=folder)
    stored, states = whole_state(net), []
    for each, used in ((net, optimizer), load_directory(smoe.nn.shard(make_net(case)), folder)):
        train(each, case, share, used)
        states.append(whole_state(each))
    if distributed.get_rank() == 0:
        torch.save(stored, folder / "states.pt")
    assert_same(states[1], states[0], name, rtol=0.0, atol=0.0)


def check_precision(share: slice) -> None:
    """Autocast and a loss scaler: sharded as whole."""
    states: list[tuple[dict[str, torch.Tensor], float]] = []
    for wrapper in ("whole", "one unit", "layers"):
        net = WRAPPERS[wrapper](make_net(CASES["rc, damping"]).float())
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=2)
        x = torch.randn(BATCH, 1, *GRID, generator=torch.Generator().manual_seed(1))[share]
        for _ in range(4):
            with torch.autocast("cpu", torch.bfloat16):
                output = net(x)
            loss = smoe.nn.track_loss_scale(F.mse_loss(output.float(), torch.ones_like(output).float()), net)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        states.append((whole_state(net), scaler.get_scale()))
    for state, scale in states[1:]:
        assert scale == states[0][1]
        assert_same(state, states[0][0], "bfloat16", rtol=1e-4, atol=1e-5)


def check_access(share: slice) -> None:
    """A gate outside a pass is refused in one line, and can be read where parameters are whole."""
    net: Any = smoe.nn.shard(make_net(CASES["rc, damping"]))
    for read in (net[0].routing, lambda: smoe.describe(net)):
        with pytest.raises(RuntimeError, match=r"use it inside `with smoe.nn.unsharded\(model\):`"):
            read()
    with smoe.nn.unsharded(net):
        assert net[0].routing().indices.shape == (2, *GRID)
        assert len(smoe.describe(net).gates) == 2
    x = torch.randn(BATCH, 1, *GRID, dtype=torch.float64)[share]
    loss = net(x).square().mean()
    with pytest.raises(RuntimeError, match="reshard_after_forward=False"):
        net[0]._scored_routing()
    loss.backward()
    # An error that is not finite in one process is counted there, and still after the next forward pass.
    parallel: Any = DistributedDataParallel(make_net(CASES["rc, damping"]))
    is_first = distributed.get_rank() == 0
    (parallel(x) * (torch.nan if is_first else 1.0)).sum().backward()
    with torch.no_grad():
        parallel(x)
    assert parallel.module[0]._signal.num_nonfinite == is_first
    # A loss of the routing: with parameters that stay between forward and backward.
    gradients = []
    for wrap in (DistributedDataParallel, lambda net: smoe.nn.shard(net, reshard_after_forward=False)):
        model: Any = wrap(make_net(CASES["rc, damping"]))
        (model(x).square().mean() + auxiliary_loss(model, importance=True, weight=1.0)).backward()
        grads = [parameter.grad for parameter in model.parameters()]
        gradients.append([grad.full_tensor() if isinstance(grad, DTensor) else grad for grad in grads])
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs)
    # A gate of parameters in units of two layers.
    net = make_net(CASES["rc, damping"])
    fully_shard(net[0])
    with pytest.raises(RuntimeError, match="1 of 2 layers that share a gate are sharded already"):
        smoe.nn.shard(net)
