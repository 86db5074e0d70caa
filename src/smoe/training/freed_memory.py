"""Keeps the memory that one training step frees for the next."""

from __future__ import annotations

import ctypes
import os

# Of glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
# The largest block that glibc, left alone, comes to keep in its heap. A larger one goes back to the system when it is
# freed, as ever.
_LARGEST_KEPT = 32 << 20


def keep_freed_memory() -> bool:
    """Asks glibc not to return the end of its heap to the system; elsewhere, or if the environment sets it, nothing.

    A small net frees nearly all its memory at the end of a step. glibc gives that back, and the next step pays for each
    page again: up to a third of its time (results/bench/freed_memory.md).

    Returns:
        Whether it was done.
    """
    is_set = any(name.startswith("MALLOC_") for name in os.environ) or "glibc.malloc" in os.environ.get(
        "GLIBC_TUNABLES", ""
    )
    mallopt = None if is_set or os.name != "posix" else getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT) and mallopt(_M_TRIM_THRESHOLD, -1))
