"""Keeps the memory that one training step frees for the next."""

from __future__ import annotations

import ctypes
import os

# Options in malloc.h of glibc.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
# The largest block that glibc would keep in its heap by itself. A larger one is returned when it is freed.
_LARGEST_KEPT = 32 << 20


def keep_freed_memory() -> bool:
    """Keeps glibc from returning the end of its heap to the system.

    A small net frees nearly all its memory at the end of a step. glibc returns it, and the next step pays for each page
    again: up to a third of its time (results/bench/freed_memory.md). With another C library, or if the environment sets
    options of malloc, nothing is done.

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
