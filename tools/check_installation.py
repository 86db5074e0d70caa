"""Checks an installed smoe: its kernels are used, compute what plain PyTorch computes, and share its threads.

Run: python tools/check_installation.py, in an environment with smoe, torch and numpy and nothing else.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import torch

import smoe
from smoe.ops._conv_kernels import dense_routed_conv
from smoe.ops._operators import native_library


def check_kernels() -> str:
    """Compares the kernels with plain PyTorch operations, forward and backward.

    Returns:
        The instruction set of the kernels.
    """
    library = native_library()
    assert library is not None, "no kernels are in use: `python -m smoe.ops.backends` prints why"
    torch.manual_seed(0)
    x = torch.randn(9, 3, 11, 13, requires_grad=True)
    weight = torch.randn(6, 3, 3, 3, requires_grad=True)
    indices = torch.rand(1, 6, 11 * 13).topk(2, dim=1).indices.int()
    error = torch.randn(9, 2, 11, 13)
    results = []
    for convolve in (smoe.ops.routed_conv2d, dense_routed_conv):
        output = convolve(x, weight, indices)
        results.append((output, *torch.autograd.grad(output, (x, weight), error)))
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    return library.instruction_set


def check_layer() -> None:
    """Trains a layer for one step."""
    layer = smoe.SpatialMoE2d.from_experts(1, num_experts=3, num_selected=1, spatial_shape=(16, 16))
    layer(torch.randn(8, 1, 16, 16)).square().mean().backward()
    assert layer.routing().indices.shape == (1, 16, 16)


def openmp_runtimes() -> list[str]:
    """Files of OpenMP runtimes that this process has opened, on Linux."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    files = {line.split(maxsplit=5)[5] for line in lines if line.count(" ") >= 5 and "/" in line}
    return sorted(file for file in files if Path(file).name.startswith(("libgomp", "libiomp", "libomp")))


def check_command_line() -> None:
    """Runs the commands that need no extra."""
    for arguments in (["--version"], ["--help"], ["bench", "backends"]):
        subprocess.run([sys.executable, "-m", "smoe", *arguments], check=True, capture_output=True)


if __name__ == "__main__":
    instruction_set = check_kernels()
    check_layer()
    runtimes = openmp_runtimes()
    assert len(runtimes) <= 1, f"more than one OpenMP runtime: {', '.join(runtimes)}"
    check_command_line()
    print(json.dumps({"version": smoe.__version__, "instruction set": instruction_set, "OpenMP": runtimes}))
