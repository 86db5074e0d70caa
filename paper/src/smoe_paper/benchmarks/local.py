"""The locally connected layer by our kernels beside the unfold-multiply-sum way."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from smoe.ops._routed_conv import local_conv2d, unfolded_local_conv2d
from smoe_paper.benchmarks.timing import circumstances, interleaved_medians, origin, write_table

COLUMNS = ("configuration", "unfold ms", "ours ms", "ours / unfold", "unfold fwd+bwd ms", "ours fwd+bwd ms", "ratio")
# Batch, channels, filters at each pixel, rows, columns; 3 x 3 kernels.
CONFIGURATIONS = {
    "heat (LCN of the paper)": (32, 1, 1, 64, 64),
    "CIFAR10, third layer": (64, 64, 64, 28, 28),
    "faces 32x32, 16 to 16": (16, 16, 16, 32, 32),
    "one sample, 32 to 32": (1, 32, 32, 32, 64),
}


def measure(name: str, *, seconds: float = 2.0) -> dict[str, Any]:
    """One row of the table, on one thread."""
    torch.set_num_threads(1)
    B, C, num_filters, H, W = CONFIGURATIONS[name]
    input = torch.randn(B, C, H, W, requires_grad=True)
    weight = torch.randn(num_filters, H, W, C, 3, 3, requires_grad=True)
    error = torch.randn(B, num_filters, H, W)

    def forward(function: Callable[..., torch.Tensor]) -> Callable[[], object]:
        def run() -> None:
            with torch.no_grad():
                function(input, weight)

        return run

    def both(function: Callable[..., torch.Tensor]) -> Callable[[], object]:
        def run() -> None:
            function(input, weight).backward(error)
            input.grad = weight.grad = None

        return run

    ways = {"unfold": unfolded_local_conv2d, "ours": local_conv2d}
    once = interleaved_medians({name: forward(function) for name, function in ways.items()}, seconds=seconds)
    twice = interleaved_medians({name: both(function) for name, function in ways.items()}, seconds=2 * seconds)
    return {
        "configuration": name,
        "unfold ms": f"{1000 * once['unfold']:.2f}",
        "ours ms": f"{1000 * once['ours']:.2f}",
        "ours / unfold": f"{once['ours'] / once['unfold']:.2f}",
        "unfold fwd+bwd ms": f"{1000 * twice['unfold']:.2f}",
        "ours fwd+bwd ms": f"{1000 * twice['ours']:.2f}",
        "ratio": f"{twice['ours'] / twice['unfold']:.2f}",
        **circumstances(),
    }


def main(args: list[str] | None = None) -> None:
    """Measures every configuration, prints the table and stores it."""
    from rich.progress import track

    from smoe.command_line import parse_nothing

    parse_nothing(args, prog="smoe bench local", text=__doc__ or "")
    rows = [measure(name) for name in track(CONFIGURATIONS, description="measuring")]
    title = "The locally connected layer beside unfold, multiply, sum"
    notes = f"One thread, interleaved, medians. {origin(rows[-1])}"
    path = Path("paper/results/bench/local.md")
    sys.stdout.write(write_table(path, title, "smoe bench local", COLUMNS, rows, notes))
