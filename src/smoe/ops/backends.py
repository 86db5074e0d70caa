"""Which implementations of the operators are used on this machine, and why others are not.

`python -m smoe.ops.backends` prints them.
"""

from __future__ import annotations

import os
import sys

import torch

from smoe.ops._operators import BACKEND_VARIABLE, INSTRUCTION_SETS, native_library, why_not
from smoe.ops.triton._choice import why_no_triton, why_not_on


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


def _describe_device(index: int) -> str:
    major, minor = torch.cuda.get_device_capability(index)
    reason = why_not_on(index)
    state = "sparse kernels for the shapes below" if reason is None else f"dense: {reason}"
    return f"{torch.cuda.get_device_name(index)}, compute capability {major}.{minor}, {state}"


if __name__ == "__main__":
    for name, state in describe_backends():
        sys.stdout.write(f"{name:<18}{state}\n")
