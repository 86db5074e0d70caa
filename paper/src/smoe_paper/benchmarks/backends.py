"""Which implementations of the operators are used on this machine, and why others are not.

On a GPU, the shape of a layer decides between the sparse kernels and the dense way; the command prints the decision for
the layers of the roofline model.
"""

from __future__ import annotations

import sys

import torch

from smoe.command_line import parse_nothing
from smoe.ops.backends import describe_backends
from smoe.ops.triton._choice import CROSSOVERS, why_dense
from smoe_paper.benchmarks.gpu_model import LAYERS


def describe_choices(major: int) -> list[tuple[str, str]]:
    """A line for each layer of the roofline model: which kernels a GPU of this generation uses for it, and why."""
    lines: list[tuple[str, str]] = []
    for name, shape in LAYERS.items():
        reason = why_dense(shape, major)
        lines.append((name, "sparse" if reason is None else f"dense: {reason}"))
    return lines


def main(args: list[str] | None = None) -> None:
    """Prints a line for each backend."""
    parse_nothing(args, prog="smoe bench backends", text=__doc__ or "")
    for name, state in describe_backends():
        sys.stdout.write(f"{name:<18}{state}\n")
    # Without a GPU, what its generations would choose.
    majors = {torch.cuda.get_device_capability(index)[0] for index in range(torch.cuda.device_count())}
    for major in sorted(majors) or CROSSOVERS:
        sys.stdout.write(f"\nthe routed convolution on a GPU of compute capability {major}.x:\n")
        for name, state in describe_choices(major):
            sys.stdout.write(f"  {name:<28}{state}\n")
