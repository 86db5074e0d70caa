"""This process: what a run is made with (versions, machine, commit and command), and how it frees memory."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

# Options in malloc.h of glibc.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
# The largest block that glibc would keep in its heap by itself. A larger one is returned when it is freed.
_LARGEST_KEPT = 32 << 20


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
    # The code only: results that are being written do not change what is run.
    changes = _git(package, "diff", "--quiet", "HEAD", "--", ":/src", ":/paper/src")
    is_clean = changes is not None and changes.returncode == 0
    return commit.stdout.strip() + ("" if is_clean else "-dirty")


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None


def keep_freed_memory() -> bool:
    """Keeps glibc from returning the end of its heap to the system.

    A small net frees nearly all its memory at the end of a step. glibc returns it, and the next step pays for each page
    again: up to a third of its time (paper/results/bench/freed_memory.md). With another C library, or if the
    environment sets options of malloc, nothing is done.

    Returns:
        Whether the option was set.
    """
    is_set = any(name.startswith("MALLOC_") for name in os.environ) or "glibc.malloc" in os.environ.get(
        "GLIBC_TUNABLES", ""
    )
    mallopt = None if is_set or os.name != "posix" else getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT) and mallopt(_M_TRIM_THRESHOLD, -1))
