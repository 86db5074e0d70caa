from __future__ import annotations

import dataclasses
import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from smoe.ops.triton import _choice
from smoe.ops.triton._choice import RoutedShape, tile_for, tiles_of, why_dense, why_not_sparse, why_too_old

WEATHER = RoutedShape(64, 128, 256, 128, 1, (3, 3), (32, 64), 2048)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"is_shared": False}, "each sample has its own routing"),
        ({"channels": 3}, "C = 3 is below 32"),
        ({"num_selected": 5}, "E * F = 5 is below 32"),
        ({"batch": 8}, "B = 8 is below 24"),
        ({"grid": (4096, 8192), "output_pixels": 4096 * 8192}, "more than 32-bit offsets reach"),
    ],
)
def test_reason_for_the_dense_way(change, reason):
    assert why_dense(WEATHER) is None
    found = why_dense(dataclasses.replace(WEATHER, **change))
    assert found is not None and reason in found


def test_kernels_are_off_unless_they_are_asked_for(monkeypatch):
    monkeypatch.setattr("torch.version.cuda", "12.8")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    why = _choice.why_no_triton.__wrapped__
    monkeypatch.delenv("SMOE_BACKEND", raising=False)
    assert "SMOE_BACKEND=triton" in (why() or "")
    monkeypatch.setenv("SMOE_BACKEND", "triton")
    assert why() is None


def test_old_triton_is_not_used():
    assert why_too_old("3.1.0") == "Triton 3.1.0 is older than 3.4; update PyTorch"
    assert why_too_old("3.10.0+git") is None


def test_tensors_that_the_kernels_do_not_take(monkeypatch):
    monkeypatch.setattr(_choice, "why_no_triton", lambda: None)
    monkeypatch.setattr(_choice, "why_not_on", lambda index: None)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (8, 0))
    input, weight = torch.empty(64, 128, 32, 64, device="meta"), torch.empty(256, 128, 3, 3, device="meta")
    indices = torch.empty(1, 128, 2048, dtype=torch.int32, device="meta")
    assert why_not_sparse(input, weight, indices, 1) is None
    assert why_not_sparse(input.double(), weight, indices, 1) == "no kernel for torch.float64"
    assert "torch.float16" in (why_not_sparse(input.half(), weight, indices, 1) or "")
    # Few elements, but far apart.
    part = torch.empty(64, 2**26, device="meta").as_strided(input.shape, (2**26, 2048, 64, 1))
    assert "more than 32-bit offsets reach" in (why_not_sparse(part, weight, indices, 1) or "")


def test_tiles_fit_the_sides_of_a_product():
    for direction in ("forward", "input_gradient", "weight_gradient"):
        for bytes_each, precision in ((2, "tf32"), (4, "tf32"), (4, "ieee")):
            tiles = tiles_of(direction, bytes_each=bytes_each, precision=precision)
            for sizes in ((33, 20, 40), (64, 64, 64), (1000, 1000, 1000), (1, 1, 1)):
                rows, columns, depth = sizes
                tile = tile_for(
                    direction, rows=rows, columns=columns, depth=depth, bytes_each=bytes_each, precision=precision
                )
                assert tile in tiles
                assert min(tile.rows, tile.columns, tile.depth) >= 16
    small = tile_for("forward", rows=33, columns=20, depth=40, bytes_each=2, precision="tf32")
    assert small.name == "64x32x64"


def test_importing_smoe_imports_no_kernels():
    # (torch._dynamo imports Triton by itself where it is installed.)
    code = (
        "import sys, smoe; assert not any(name.split('.')[0] == 'triton' for name in sys.modules), 'triton'; "
        "import smoe.nn; found = {name for name in sys.modules if name.startswith('smoe.ops.triton.')}; "
        "assert found == {'smoe.ops.triton._choice'}, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


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
