from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

needs_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such setting")

# Twelve steps that each take 48 MB in blocks of 8 MB and free all of it: page faults of the last ten.
_STEPS = """
import ctypes, resource, sys
if sys.argv[1] == "keep":
    from smoe.training.run_directory import keep_freed_memory
    assert keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
for step in range(12):
    if step == 2:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [libc.malloc(8 << 20) for _ in range(6)]
    for block in blocks:
        libc.memset(block, 1, 8 << 20)
    for block in blocks:
        libc.free(block)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@needs_glibc
def test_the_next_step_finds_its_pages() -> None:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("MALLOC_") and name != "GLIBC_TUNABLES"
    }
    faults = {
        way: int(
            subprocess.run(
                [sys.executable, "-c", _STEPS, way], env=environment, capture_output=True, text=True, check=True
            ).stdout
        )
        for way in ("keep", "leave")
    }
    # 48 MB are 12,288 pages; huge pages would make them fewer.
    assert faults["keep"] < 100 < faults["leave"]
