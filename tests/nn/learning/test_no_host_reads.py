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
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import smoe
from host_reads import CountReads
from smoe.options import Order
from smoe.rules import Damping, RoutingClassification

GRID = (6, 7)
CASES: dict[str, tuple[Order, dict[str, Any]]] = {
    "rc": ("score", {"rule": "rc"}),
    "rc_released": ("score", {"rule": RoutingClassification.released()}),
    "rc_two_thresholds": ("index", {"rule": "rc", "damping": Damping(0.1, 0.3)}),
    "rc_output_unit": ("score", {"rule": RoutingClassification(tolerance_unit="output")}),
    "rc_weighted": ("families", {"rule": "rc", "weighted": True}),
    "probe": ("score", {"rule": "probe(window=2)"}),
    "probe_confident": ("score", {"rule": "probe(window=1, confidence=1.0)", "damping": 0.1}),
    "straight_through_families": ("families", {"rule": "straight_through", "bias": True}),
    "straight_through_weighted": ("families", {"rule": "straight_through", "weighted": True}),
    "end_to_end": ("score", {"rule": "end_to_end"}),
    "end_to_end_weighted": ("score", {"rule": "end_to_end", "weighted": True, "damping": 0.1}),
    "frozen": ("score", {"rule": "frozen"}),
    "frozen_damped": ("index", {"rule": "frozen", "damping": 0.1}),
}


def make_net(order: Order, options: dict[str, Any], gate: Callable[[], smoe.SpatialGate] | None = None) -> nn.Module:
    """Two layers that share a gate, and one of experts that are any module, on the meta device."""
    with torch.device("meta"):
        shared = smoe.TensorGate(5, 2, GRID, order=order) if gate is None else gate()
        module_options = {name: value for name, value in options.items() if name != "bias"}
        return nn.Sequential(
            smoe.SpatialMoE2d.from_experts(1, 5, 2, gate=shared, **options),
            nn.Tanh(),
            smoe.SpatialMoE2d.from_experts(2, 5, 2, gate=shared, **options),
            smoe.SpatialMoE(nn.Conv2d(2, 5, 1), 5, 2, gate=shared, **module_options),
        )


def make_default_net() -> nn.Sequential:
    """Layers with the defaults: of several channels, of several outputs for each expert, and of one channel."""
    with torch.device("meta"):
        return nn.Sequential(
            smoe.SpatialMoE2d.from_experts(1, 5, 2, spatial_shape=GRID),
            nn.Tanh(),
            smoe.SpatialMoE2d.from_experts(2, 4, 1, spatial_shape=GRID, expert_channels=2),
            smoe.SpatialMoE2d.from_experts(2, 3, 1, spatial_shape=GRID),
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


@pytest.mark.parametrize("name", CASES)
def test_a_training_step_reads_nothing(name: str) -> None:
    counter = count_reads(make_net(*CASES[name]))
    assert counter.reads == []
    assert counter.num_operations > 50


@pytest.mark.parametrize("half", [False, True])
def test_a_training_step_of_default_layers_reads_nothing(half: bool) -> None:
    net = make_default_net()
    rules = [str(layer.rule) for layer in net if isinstance(layer, smoe.SpatialMoE2d)]
    assert [rule.partition("(")[0] for rule in rules] == ["straight_through", "straight_through", "straight_through"]
    assert count_reads(net, num_steps=3, half=half).reads == []


@pytest.mark.parametrize("rule", ["straight_through", "straight_through(patience=1)", "frozen"])
def test_families_of_a_shared_factorised_gate_read_nothing(rule: str) -> None:
    net = make_net("families", {"rule": rule}, lambda: smoe.FactorisedGate(5, 2, GRID, order="families"))
    assert count_reads(net, num_steps=3).reads == []


@pytest.mark.parametrize("name", ["rc_released", "probe", "straight_through_families", "end_to_end", "frozen"])
def test_a_training_step_in_float16_reads_nothing(name: str) -> None:
    assert count_reads(make_net(*CASES[name]), half=True).reads == []


@pytest.mark.parametrize("rule", ["rc", "end_to_end", "frozen"])
@pytest.mark.parametrize(
    "gate",
    [
        lambda: smoe.nn.NoisyGate(smoe.TensorGate(5, 2, GRID, normalization="softmax")),
        lambda: smoe.FactorisedGate(5, 2, GRID, order="score"),
        lambda: smoe.FixedGate(torch.zeros(5, *GRID), 2),
    ],
    ids=["noisy", "factorised", "fixed"],
)
def test_other_gates_read_nothing_either(gate: Callable[[], smoe.SpatialGate], rule: str) -> None:
    assert count_reads(make_net("score", {"rule": rule}, gate)).reads == []


class CountConvolutions(TorchDispatchMode):
    """Notes the number of experts that each routed convolution evaluates at a pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.num_selected: list[int] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        del types
        if func is torch.ops.smoe.routed_conv2d.default:
            self.num_selected.append(args[2].shape[1])
        return func(*args, **(kwargs or {}))


def test_challengers_are_evaluated_together_with_the_selected_experts() -> None:
    with torch.device("meta"):
        layer = smoe.SpatialMoE2d.from_experts(1, 5, 2, spatial_shape=GRID, order="score", rule="probe")
    with CountConvolutions() as counter:
        layer(torch.empty(3, 1, *GRID, device="meta")).sum().backward()
    # A GPU may compute the whole bank for it: once.
    assert counter.num_selected == [3]


def test_a_read_is_counted() -> None:
    with CountReads() as counter:
        bool(torch.ones(2).sum() > 1.0)
        torch.ones(2).nonzero()
    assert sorted(counter.reads) == ["aten::_local_scalar_dense", "aten::nonzero"]


def test_a_copy_to_the_device_is_counted_unless_it_is_asynchronous() -> None:
    with CountReads() as counter:
        torch.ones(3).to("meta", torch.float64)
        torch.ones(3).to("meta", non_blocking=True)
        torch.empty(2, device="meta").copy_(torch.ones(2))
        torch.empty(2, device="meta").copy_(torch.ones(2), non_blocking=True)
        torch.empty(2, device="meta").to(torch.float64)
    assert counter.reads == ["copy of (3,)", "copy of (2,)"]


def test_the_dense_operators_read_nothing_either() -> None:
    paths = os.pathsep.join((str(Path(__file__).parents[2] / "support"), os.environ.get("PYTHONPATH", "")))
    environment = {**os.environ, "SMOE_BACKEND": "dense", "PYTHONPATH": paths}
    result = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == [*CASES, "default"]


if __name__ == "__main__":
    for case in CASES:
        found = count_reads(make_net(*CASES[case]))
        assert found.reads == [], (case, found.reads)
        sys.stdout.write(f"{case}\n")
    assert count_reads(make_default_net(), num_steps=2).reads == []
    sys.stdout.write("default\n")
