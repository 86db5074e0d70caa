"""Measures kinds of the same thing, each in a process of its own, and compares them with the first."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any


def measure_apart(
    script: str, kind: str, backend: str, arguments: argparse.Namespace, names: Sequence[str]
) -> dict[str, Any]:
    """What a script prints as JSON for `--kind`, from a new process, so that none finds the memory another has left.

    Args:
        script: File of the benchmark.
        kind: Case to measure.
        backend: Backend of the routed convolution; `auto` does not set one.
        arguments: Arguments of the benchmark.
        names: Names of the arguments to pass on.
    """
    command = [sys.executable, script, "--kind", kind]
    for name in names:
        command += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
    environment = dict(os.environ) if backend == "auto" else {**os.environ, "SMOE_BACKEND": backend}
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if result.returncode != 0:
        raise RuntimeError(f"{kind} failed: {result.stderr}")
    return json.loads(result.stdout)


def compared(numbers: Mapping[str, float], unit: Mapping[str, float], unit_name: str) -> dict[str, str]:
    """Seconds and peak memory of a kind, and their ratios to the unit's."""
    return {
        "parameters": f"{numbers['parameters']:,}",
        "seconds": f"{numbers['seconds']:.2f}",
        f"ratio to {unit_name}": f"{numbers['seconds'] / unit['seconds']:.2f}",
        "peak GB": f"{numbers['peak MB'] / 1000:.2f}",
        "ratio of peaks": f"{numbers['peak MB'] / unit['peak MB']:.2f}",
    }
