from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def test_kernel_compiles_ahead_of_time(tmp_path):
    pytest.importorskip("triton", reason="Triton is not installed")
    # In a process of its own: this one has the interpreter in place of the compiler.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, "tools/gpu_compile.py", "--kernel", "rank_kernel", "--capabilities", "80"],
        cwd=ROOT,
        env={**environment, "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "kernels compiled, 0 problems" in run.stdout and " 0 kernels" not in run.stdout
