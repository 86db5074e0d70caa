"""Which implementation of the routed convolution is in use here, and why another is not."""

from __future__ import annotations

import os
import sys

from smoe.command_line import parse_nothing
from smoe.ops.native.library import INSTRUCTION_SETS, native_library, why_not
from smoe.ops.registration import BACKEND_VARIABLE


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
    rest = "everything else: other devices and dtypes" if used else "everything"
    lines.append(("dense", f"used for {rest} (all experts everywhere, then a gather)"))
    return lines


def main(args: list[str] | None = None) -> None:
    """Prints a line for each backend."""
    parse_nothing(args, prog="smoe bench backends", text=__doc__ or "")
    for name, state in describe_backends():
        sys.stdout.write(f"{name:<18}{state}\n")
