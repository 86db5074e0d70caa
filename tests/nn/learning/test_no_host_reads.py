"""No rule reads the value of a tensor on the host in a training step: on an accelerator each read waits for the device.

A step on the meta device has no values to read, so that a read fails or is counted. With SMOE_BACKEND=dense the
operators consist of PyTorch's own, so that their implementations for accelerators are looked into, too.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import smoe
from smoe.rules import Damping, RoutingClassification
from smoe_paper.baselines.routing_losses import ScoreGate

GRID = (6, 7)
GATES: dict[str, Callable[[], smoe.SpatialGate]] = {
    "score": lambda: smoe.TensorGate(5, 2, GRID, order="score"),
    "index": lambda: smoe.TensorGate(5, 2, GRID, order="index"),
    "families": lambda: smoe.TensorGate(5, 2, GRID, order="families"),
    "factorised": lambda: smoe.FactorisedGate(5, 2, GRID),
    "noisy": lambda: ScoreGate(smoe.TensorGate(5, 2, GRID), normalisation="softmax"),
    "fixed": lambda: smoe.FixedGate(torch.zeros(5, *GRID), 2),
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "default": ("factorised", {}),
    "rc": ("score", {"rule": "rc"}),
    "rc_released": ("noisy", {"rule": RoutingClassification.released()}),
    "rc_two_thresholds": ("index", {"rule": "rc", "damping": Damping(0.1, 0.3)}),
    "rc_output_unit": ("score", {"rule": RoutingClassification(tolerance_unit="output")}),
    "rc_weighted": ("families", {"rule": "rc", "weighted": True}),
    "straight_through": ("factorised", {"rule": "straight_through", "bias": True}),
    "end_to_end": ("fixed", {"rule": "end_to_end"}),
    "end_to_end_weighted": ("score", {"rule": "end_to_end", "weighted": True, "damping": 0.1}),
    "frozen": ("factorised", {"rule": "frozen"}),
    "frozen_damped": ("index", {"rule": "frozen", "damping": 0.1}),
}


# Operations whose result, or the shape of it, depends on values that the host has to wait for.
READS = (
    "_local_scalar_dense",
    "item",
    "is_nonzero",
    "nonzero",
    "nonzero_numpy",
    "equal",
    "masked_select",
    "unique_dim",
    "_unique2",
    "unique_consecutive",
    "repeat_interleave",
)
COPIES = ("_to_copy", "copy_")


class CountReads(TorchDispatchMode):
    """Counts the operations that wait. A tensor on the meta device stands for one on an accelerator.

    Attributes:
        reads: Names of the operations that waited.
        num_operations: Number of all operations.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []
        self.num_operations = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        del types
        self.num_operations += 1
        name, kwargs = func._schema.name.removeprefix("aten::"), kwargs or {}
        result = func(*args, **kwargs)
        if name in READS:
            self.reads.append(func._schema.name)
        elif name in COPIES and torch.is_tensor(result) and result.is_meta:
            # From the CPU, unless the caller says that it need not be waited for.
            source, is_asynchronous = args[name == "copy_"], kwargs.get("non_blocking") or args[2:3] == (True,)
            if not source.is_meta and source.ndim > 0 and not is_asynchronous:
                self.reads.append(f"copy of {tuple(source.shape)}")
        return result


def make_net(name: str) -> nn.Module:
    """Two layers that share a gate, and one of experts that are any module, on the meta device."""
    gate, options = CASES[name]
    with torch.device("meta"):
        shared = GATES[gate]()
        module_options = {name: value for name, value in options.items() if name != "bias"}
        return nn.Sequential(
            smoe.SpatialMoE2d.from_experts(1, 5, 2, gate=shared, **options),
            nn.Tanh(),
            smoe.SpatialMoE2d.from_experts(2, 5, 2, gate=shared, **options),
            smoe.SpatialMoE(nn.Conv2d(2, 5, 1), 5, 2, gate=shared, **module_options),
        )


def count_reads(net: nn.Module, num_steps: int = 1, *, half: bool = False) -> CountReads:
    """Training steps with two accumulated batches each, with a tracked loss and a gradient scaler's factor."""
    net = net.half() if half else net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    dtype = torch.float16 if half else torch.float32
    counter = CountReads()
    with counter:
        for _ in range(num_steps):
            optimizer.zero_grad()
            for _ in range(2):
                x = torch.empty(3, 1, *GRID, device="meta", dtype=dtype)
                with nullcontext() if half else torch.autocast("cpu", torch.bfloat16):
                    output = net(x)
                loss = smoe.nn.track_loss_scale(F.mse_loss(output.float(), torch.empty_like(output).float()), net)
                (loss * 1024.0 / 2).backward()
            optimizer.step()
    return counter


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_a_training_step_reads_nothing(name: str, half: bool) -> None:
    counter = count_reads(make_net(name), num_steps=2, half=half)
    assert counter.reads == [] and counter.num_operations > 50


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


GEOMETRIES: dict[str, tuple[Callable[..., nn.Module], tuple[torch.Tensor, ...]]] = {
    "line": (partial(smoe.SpatialMoE1d.from_experts, spatial_shape=9), (empty(2, 3, 9),)),
    "volume": (partial(smoe.SpatialMoE3d.from_experts, spatial_shape=(3, 4, 5)), (empty(2, 3, 3, 4, 5),)),
    "nested": (partial(smoe.HEALPixMoE.from_experts, nside=2), (empty(2, 3, 48),)),
    "ring": (partial(smoe.HEALPixMoE.from_experts, nside=2, pixel_order="ring"), (empty(2, 3, 48),)),
    **{
        aggregation: (
            partial(smoe.GraphMoE.from_experts, num_nodes=7, edge_dim=2, aggregation=aggregation),
            (empty(4, 7, 3), empty(2, 11, dtype=torch.int64), empty(11), empty(11, 2)),
        )
        for aggregation in ("mean", "gcn")
    },
}


@pytest.mark.parametrize("options", [{}, {"rule": "rc", "damping": 0.1}])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_every_geometry_reads_nothing(name: str, options: dict[str, Any]) -> None:
    make, arguments = GEOMETRIES[name]
    # On the host: what belongs to a geometry is computed once, there.
    layer = make(3, 5, 2, **options).to("meta")
    layer(*arguments)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    with CountReads() as counter:
        for _ in range(3):
            optimizer.zero_grad()
            (smoe.nn.track_loss_scale(layer(*arguments).square().mean(), layer) * 1024.0).backward()
            optimizer.step()
    assert counter.reads == []


def test_what_is_read_is_counted() -> None:
    with CountReads() as counter:
        bool(torch.ones(2).sum() > 1.0)
        torch.ones(2).nonzero()
        torch.ones(3).to("meta", torch.float64)
        torch.empty(2, device="meta").copy_(torch.ones(2), non_blocking=True)
    assert counter.reads == ["aten::_local_scalar_dense", "aten::nonzero", "copy of (3,)"]


def test_the_dense_operators_read_nothing_either() -> None:
    environment = {**os.environ, "SMOE_BACKEND": "dense"}
    result = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == [*CASES]


if __name__ == "__main__":
    for case in CASES:
        found = count_reads(make_net(case))
        assert found.reads == [], (case, found.reads)
        sys.stdout.write(f"{case}\n")
