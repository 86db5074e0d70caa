"""A training step of one layer on a grid of 0.25 degrees with each kind of gate, beside a convolution."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from torch import nn

import smoe
from smoe.command_line import UsageError, parse
from smoe_paper.benchmarks.memory import status
from smoe_paper.benchmarks.timing import circumstances, origin, write_table

GATES = ("conv2d", "factorised", "coarse", "tensor")
COLUMNS = (
    *("layer", "gate parameters", "gate optimiser state MB", "peak GB"),
    *("learning step s", "other step s", "learning step / conv2d", "other step / conv2d"),
)


@dataclass(frozen=True)
class LargeGridOptions:
    """Measures the peak memory and the processor time of training steps, and stores a table.

    Attributes:
        names: Layers to measure: conv2d, factorised, coarse, tensor; all if none is given.
        rows: Rows of the grid.
        columns: Columns of the grid.
        channels: Channels of the input, and experts selected at each pixel.
        experts: Experts in the bank.
        steps: Training steps; with one, only the step in which the gate learns is measured.
        output: Markdown file of the table; a .jsonl beside it holds the rows.
        only: Measures one layer in this process and prints the numbers; the command itself uses it.
    """

    names: tyro.conf.Positional[tuple[str, ...]] = ()
    rows: int = 721
    columns: int = 1440
    channels: int = 128
    experts: int = 256
    steps: int = 3
    output: Path = Path("paper/results/bench/large_grid.md")
    only: str | None = None


def make_layer(name: str, options: LargeGridOptions) -> nn.Module:
    """The convolution, or a layer with default arguments but for its gate."""
    C, X, grid = options.channels, options.experts, (options.rows, options.columns)
    if name == "conv2d":
        return nn.Conv2d(C, C, 3, padding=1)
    gates = {
        "factorised": lambda: smoe.FactorisedGate(X, C, grid),
        "coarse": lambda: smoe.CoarseGate(X, C, grid, wraps=(False, True)),
        "tensor": lambda: smoe.TensorGate(X, C, grid, order="families"),
    }
    return smoe.SpatialMoE2d.from_experts(C, X, C, gate=gates[name](), padding_mode="longitude")


def measure(name: str, options: LargeGridOptions) -> dict[str, float]:
    """Peak memory of this process, and processor seconds of a step with and without learning of the gate."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layer = make_layer(name, options)
    optimizer = torch.optim.Adam(layer.parameters())
    input = torch.randn(1, options.channels, options.rows, options.columns)
    seconds = []
    for _ in range(options.steps):
        started = time.process_time()
        # The input receives a gradient, as that of a layer within a network does.
        layer(input.detach().requires_grad_()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.process_time() - started)
    # With one sample, the gate learns in the first step, and not in the next three.
    others = seconds[1:4] if name != "conv2d" else seconds
    return {"peak": status("VmHWM"), "learning": seconds[0], "other": min(others, default=math.nan)}


def describe(name: str, options: LargeGridOptions, conv2d: dict[str, float] | None) -> tuple[dict[str, Any], Any]:
    """A row of the table, and the numbers that were measured."""
    with torch.device("meta"):
        layer = make_layer(name, options)
    gate = 0 if name == "conv2d" else sum(p.numel() for p in layer.get_submodule("gate").parameters())
    row: dict[str, Any] = {
        "layer": "F.conv2d with E filters" if name == "conv2d" else f"SMoE, {name} gate",
        "gate parameters": f"{gate:,}",
        "gate optimiser state MB": f"{8 * gate / 1e6:.0f}",
        **dict.fromkeys(COLUMNS[3:], "-"),
        **circumstances(),
    }
    flags = [f"--{field}={getattr(options, field)}" for field in ("rows", "columns", "channels", "experts", "steps")]
    command = [sys.executable, "-m", "smoe", "bench", "large-grid", f"--only={name}", *flags]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        row["peak GB"] = f"failed: exit code {result.returncode}"
        return row, None
    numbers = json.loads(result.stdout)
    row["peak GB"] = f"{numbers['peak'] / 1e3:.2f}"
    row["learning step s"] = f"{numbers['learning']:.1f}"
    has_others = math.isfinite(numbers["other"])
    row["other step s"] = f"{numbers['other']:.1f}" if has_others else "-"
    if conv2d is not None:
        row["learning step / conv2d"] = f"{numbers['learning'] / conv2d['other']:.2f}"
        row["other step / conv2d"] = f"{numbers['other'] / conv2d['other']:.2f}" if has_others else "-"
    return row, numbers


def main(args: list[str] | None = None) -> None:
    """Measures each layer in a process of its own, and stores the table after each."""
    options = parse(LargeGridOptions, args or [], prog="smoe bench large-grid")
    if options.only is not None:
        sys.stdout.write(json.dumps(measure(options.only, options)))
        return
    unknown = [name for name in options.names if name not in GATES]
    if unknown:
        raise UsageError(f"the layers are {', '.join(GATES)}, got {unknown[0]!r}")
    rows: list[dict[str, Any]] = []
    conv2d, text = None, ""
    for name in options.names or GATES:
        row, numbers = describe(name, options, conv2d)
        conv2d = numbers if name == "conv2d" else conv2d
        rows.append(row)
        title = (
            f"One layer on {options.rows} x {options.columns} pixels: C = {options.channels}, X = {options.experts}, "
            f"E = {options.channels}, batch 1"
        )
        notes = (
            f"Forward, backward and Adam, steps: {options.steps}; each layer in a process of its own, one thread, "
            "seconds of the processor. The peak is the largest resident memory of the whole process, with interpreter "
            "and libraries. With one sample the gate "
            f"learns in every fourth step. {origin(rows[-1])}"
        )
        text = write_table(options.output, title, "smoe bench large-grid", COLUMNS, rows, notes)
    sys.stdout.write(text)
