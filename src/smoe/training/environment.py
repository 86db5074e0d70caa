"""What a run was made with: versions, machine, commit and command."""

from __future__ import annotations

import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any


def environment() -> dict[str, Any]:
    """Returns the environment of this process as plain values."""
    packages: dict[str, str | None] = {}
    for name in ("smoe", "torch", "numpy", "accelerate"):
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            packages[name] = None
    return {
        "packages": packages,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "processor": processor_name(),
        "system": platform.system(),
        "commit": git_commit(),
        "command": sys.argv[1:],
    }


def processor_name() -> str:
    """Returns the model name of the processor."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def git_commit() -> str | None:
    """Returns the commit of this package, marked `-dirty` if its source was changed; None outside a checkout."""
    package = Path(__file__).parents[1]
    commit = _git(package, "describe", "--always", "--abbrev=12", "--exclude=*")
    if commit is None or commit.returncode != 0 or not commit.stdout.strip():
        return None
    # The package only: results that are being written do not change what is run.
    changes = _git(package, "diff", "--quiet", "HEAD", "--", ".")
    is_clean = changes is not None and changes.returncode == 0
    return commit.stdout.strip() + ("" if is_clean else "-dirty")


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
