"""`smoe bench memory`: peak memory of a training step of the default layer beside nn.Conv2d with as many outputs."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from smoe.command_line import parse
from smoe.rules import Frozen
from smoe_paper.benchmarks.layer import CONFIGURATIONS, make_layer
from smoe_paper.benchmarks.timing import circumstances, origin, write_table

NAMES = ("CIFAR, 64", "WeatherBench, 64", "WeatherBench, 1", "ENS-10, 8, four candidates", "ENS-10, 1")
COLUMNS = ("configuration", "conv, MB", "default", "default less its numbers", "frozen", "frozen less its numbers")
# Large tensors get separate mappings, which the system takes back when they are freed: the resident memory is then
# the memory in use. By default, tensors below 32 MB lie in glibc's heap, which keeps holes of changing size.
OWN_MAPPINGS = {"MALLOC_MMAP_THRESHOLD_": "1000000"}


def measure(name: str) -> dict[str, Any]:
    """A row. Each way has a process of its own, so that none finds the memory another has left."""
    found = {way: _run(way, name) for way in ("conv", "default", "frozen")}
    conv, _ = found.pop("conv")
    row: dict[str, Any] = {"configuration": name, "conv, MB": f"{conv:.0f}"}
    for way, (peak, numbers) in found.items():
        row |= {way: f"{peak / conv:.2f}", f"{way} less its numbers": f"{(peak - numbers) / conv:.2f}"}
    return {**row, **circumstances()}


def _run(way: str, name: str) -> tuple[float, float]:
    command = [sys.executable, "-m", "smoe_paper.benchmarks.memory", way, name]
    result = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **OWN_MAPPINGS})
    peak, numbers = map(float, result.stdout.split())
    return peak, numbers


def step_peak(way: str, name: str) -> tuple[float, float]:
    """Megabytes of this process at the peak of three steps, above what it had before, and those of a layer's numbers.

    The numbers are what the layer has beyond a convolution: experts and their gradient, gate, affine maps and their
    state.
    """
    c = CONFIGURATIONS[name]
    torch.set_num_threads(1)
    # Memory that a first step loads does not belong to the layer.
    _train(nn.Sequential(nn.Conv2d(4, 4, 3, padding=1)), torch.randn(1, 4, 8, 8))
    before = _status("VmRSS")
    conv = nn.Conv2d(c.in_channels, c.out_channels, 3, padding=1)
    layer = conv if way == "conv" else make_layer(c, "random", Frozen() if way == "frozen" else None)
    numbers = 2 * sum(map(nn.Parameter.numel, layer.parameters())) + sum(map(torch.numel, layer.buffers()))
    Path("/proc/self/clear_refs").write_text("5")  # Linux forgets the peak so far
    _train(layer, torch.randn(c.batch, c.in_channels, c.height, c.width))
    return _status("VmHWM") - before, 4e-6 * (numbers - 2 * sum(map(nn.Parameter.numel, conv.parameters())))


def _train(layer: nn.Module, input: torch.Tensor) -> None:
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-6)
    input.requires_grad_()
    for _ in range(3):
        layer(input).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        input.grad = None


def _status(name: str) -> float:
    """A number of megabytes from the process status of Linux."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024 / 1e6


@dataclass(frozen=True)
class MemoryOptions:
    """Measures the peak memory of a training step of every configuration, prints the table and stores it."""


def main(args: list[str] | None = None) -> None:
    parse(MemoryOptions, args or [], prog="smoe bench memory")
    rows = [measure(name) for name in NAMES]
    notes = (
        "Ratios of the peak of the resident memory to that with `nn.Conv2d`, above what the process had before it made "
        "its tensors; three steps, one thread. *Less its numbers*: without what a layer has beyond the convolution's "
        "parameters and their gradients: more experts, gate, affine maps, and the state of their steps. Large tensors "
        f"have mappings of their own, so that memory which was freed does not count. {origin(rows[-1])}"
    )
    path, title = Path("paper/results/bench/memory.md"), "Peak memory of a training step"
    sys.stdout.write(write_table(path, title, "smoe bench memory", COLUMNS, rows, notes))


if __name__ == "__main__":
    sys.stdout.write("{} {}".format(*step_peak(*sys.argv[1:])))
