from __future__ import annotations

import dataclasses
import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


def test_kernel_compiles_ahead_of_time(tmp_path):
    pytest.importorskip("triton", reason="Triton is not installed")
    # In a process of its own: this one has the interpreter in place of the compiler.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, "tools/gpu_compile.py", "--kernel", "forward_kernel", "--capabilities", "80"],
        cwd=ROOT,
        env={**environment, "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "kernels compiled, 0 problems" in run.stdout and " 0 kernels" not in run.stdout


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    pytest.importorskip("triton", reason="Triton is not installed")
    return importlib.import_module("tools.gpu_compile")


def test_regressions_are_found_for_the_same_layer_only(tool):
    row = tool.Compiled("forward_kernel", "64x64x64", "bf16", "one", 80, 100, 0, 1000, "mma.sync", 8)
    stored = {row.key: dataclasses.asdict(row)}
    larger = dataclasses.replace(row, registers=150, copies=4)
    assert tool.problems_of(row, stored) == []
    assert tool.problems_of(larger, stored) == ["registers 150, stored 100", "4 copies of 16 bytes, stored 8"]
    assert tool.problems_of(dataclasses.replace(larger, layer="another"), stored) == []


def test_what_no_kernel_may_have(tool):
    row = tool.Compiled("masked_kernel", "64x64x64", "fp16", "one", 80, 100, 8, 170_000, "", 0)
    assert tool.problems_of(row, {}) == [
        "spills registers: 8 bytes of stack",
        "shared memory 170000 exceeds 166912 bytes",
        "no tensor-core instruction",
        "no asynchronous 16-byte copy",
    ]
    assert (
        tool.problems_of(dataclasses.replace(row, stack_bytes=0, shared_bytes=0, copies=1, dtype="ieee fp32"), {}) == []
    )
