"""Which implementations of the operators are used on this machine, and why others are not.

On a GPU, the shape of a layer decides between the sparse kernels and the dense way; the command prints the decision for
the layers of the roofline model.
"""

from __future__ import annotations

import os
import sys

import torch

from smoe.benchmarks.gpu_model import LAYERS
from smoe.command_line import parse_nothing
from smoe.ops.native.library import INSTRUCTION_SETS, native_library, why_not
from smoe.ops.registration import BACKEND_VARIABLE
from smoe.ops.triton.availability import CROSSOVERS, why_dense, why_no_triton, why_not_on


def describe_backends() -> list[tuple[str, str]]:
    """A line for each backend: its name, and whether it is used or why not."""
    used = native_library()
    lines: list[tuple[str, str]] = []
    for instruction_set in INSTRUCTION_SETS:
        reason = why_not(instruction_set)
        if used is not None and used.instruction_set == instruction_set:
            state = "used for float32 on a CPU"
        elif reason is not None:
            state = f"not used: {reason}"
        elif os.environ.get(BACKEND_VARIABLE) == "dense":
            state = f"not used: {BACKEND_VARIABLE}=dense is set"
        else:
            state = f"not used: {used.instruction_set if used else 'another'} is preferred"
        lines.append((f"native, {instruction_set}", state))
    triton_reason = why_no_triton()
    lines.append(("triton, CUDA", f"not used: {triton_reason}" if triton_reason else "used on the devices below"))
    lines += [(f"device {index}", _describe_device(index)) for index in range(torch.cuda.device_count())]
    rest = "everything else: other devices, dtypes and shapes" if used or not triton_reason else "everything"
    lines.append(("dense", f"used for {rest} (all experts everywhere, then a gather)"))
    return lines


def describe_choices(major: int) -> list[tuple[str, str]]:
    """A line for each layer of the roofline model: which kernels a GPU of this generation uses for it, and why."""
    lines: list[tuple[str, str]] = []
    for name, shape in LAYERS.items():
        reason = why_dense(shape, major)
        lines.append((name, "sparse" if reason is None else f"dense: {reason}"))
    return lines


def _describe_device(index: int) -> str:
    major, minor = torch.cuda.get_device_capability(index)
    reason = why_not_on(index)
    state = "sparse kernels for the shapes below" if reason is None else f"dense: {reason}"
    return f"{torch.cuda.get_device_name(index)}, compute capability {major}.{minor}, {state}"


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
