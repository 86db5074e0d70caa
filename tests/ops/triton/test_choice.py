from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import pytest
import torch

from smoe.ops._conv_kernels import Implementation
from smoe.ops._gather import gather_experts, scatter_experts
from smoe.ops.triton import availability
from smoe.ops.triton._planes import GpuConvolution
from smoe.ops.triton.availability import (
    MAX_ELEMENTS,
    RoutedShape,
    why_dense,
    why_no_triton,
    why_not_for,
    why_too_old,
)
from smoe.ops.triton.tiles import tile_for, tiles_of
from smoe_paper.benchmarks.gpu_model import GPUS, predict_dense, predict_sparse

WEATHER = RoutedShape(64, 128, 256, 128, 1, (3, 3), (32, 64), 2048)


def test_sparse_kernels_are_chosen_for_large_batches_and_banks():
    assert why_dense(WEATHER, 8) is None
    assert why_dense(dataclasses.replace(WEATHER, num_experts=1024), 9) is None
    # A generation that came later counts as the last one that is known.
    assert why_dense(WEATHER, 12) is not None and why_dense(dataclasses.replace(WEATHER, num_experts=1024), 12) is None


@pytest.mark.parametrize(
    ("change", "major", "reason"),
    [
        ({"is_shared": False}, 8, "each sample has its own routing"),
        ({"channels": 3}, 8, "C = 3 is below 32"),
        ({"num_selected": 5}, 8, "E * F = 5 is below 32"),
        ({"batch": 8}, 8, "B = 8 is below 24"),
        ({"num_experts": 160}, 8, "X / E = 1.25 is below 1.5"),
        ({"batch": 30}, 8, "B * X / E = 60 is below 64"),
        ({}, 9, "X / E = 2 is below 4"),
        ({"grid": (4096, 8192), "output_pixels": 4096 * 8192}, 8, "more than 32-bit offsets reach"),
    ],
)
def test_reason_for_the_dense_way(change, major, reason):
    found = why_dense(dataclasses.replace(WEATHER, **change), major)
    assert found is not None and reason in found


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
@pytest.mark.parametrize("size", [32, 64, 128, 256])
@pytest.mark.parametrize("pixels", [784, 2048, 64_800])
def test_rule_agrees_with_the_model(gpu, size, pixels):
    # Where the rule chooses the sparse kernels, the model predicts no loss worth mentioning in training, and a gain
    # in forward; where it does not, the model predicts no large gain in training.
    for batch in (8, 16, 32, 64, 128, 512):
        for ratio in (1, 2, 4, 8, 16):
            shape = RoutedShape(batch, size, ratio * size, size, 1, (3, 3), (1, pixels), pixels)
            if shape.largest_tensor >= MAX_ELEMENTS:
                continue
            dense, sparse = predict_dense(shape, gpu, "bf16"), predict_sparse(shape, gpu, "bf16")
            if why_dense(shape, gpu.major) is None:
                assert sparse.both < 1.2 * dense.both, shape
                assert sparse.forward < dense.forward, shape
            else:
                assert sparse.both > 0.65 * dense.both, shape


def test_no_kernel_for_float64_or_without_a_gpu():
    tensor = torch.zeros(2, dtype=torch.float64)
    if why_no_triton() is not None:
        assert why_not_for(tensor) == why_no_triton()
    else:
        assert why_not_for(tensor.cuda()) == "no kernel for torch.float64"


def test_kernels_are_off_unless_they_are_asked_for(monkeypatch):
    monkeypatch.setattr("torch.version.cuda", "12.8")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    why = availability.why_no_triton.__wrapped__
    monkeypatch.delenv("SMOE_BACKEND", raising=False)
    assert "SMOE_BACKEND=triton" in (why() or "")
    monkeypatch.setenv("SMOE_BACKEND", "triton")
    assert why() is None


def test_old_triton_is_not_used():
    assert why_too_old("3.1.0") == "Triton 3.1.0 is older than 3.4; update PyTorch"
    assert why_too_old("3.10.0+git") is None


def test_part_of_a_tensor_beyond_the_offsets_has_no_kernel(monkeypatch):
    for name in ("why_no_triton", "why_not_on"):
        monkeypatch.setattr(f"smoe.ops.triton.availability.{name}", lambda *_: None)
    whole = torch.empty(3, 2**30, device="meta")
    # Few elements, but far apart.
    assert why_not_for(whole[:, :5]) == f"a tensor has {2**31 + 5} elements, more than 32-bit offsets reach"
    assert why_not_for(whole[:2, :5]) is None
    assert why_not_for(whole[:, :0]) is None


def choose(convolution: GpuConvolution, num_pixels: int, *, is_backward: bool) -> object:
    """What an implementation returns that names itself."""
    input, weight = torch.empty(64, 32, 1, num_pixels, device="meta"), torch.empty(256, 32, 1, 1, device="meta")
    indices, error = torch.empty(1, 8, num_pixels, device="meta"), torch.empty(64, 8, 1, num_pixels, device="meta")
    if is_backward:
        return convolution.backward(error, input, weight, indices, 1, 1, "zeros", True, True)
    return convolution.forward(input, weight, indices, 1, 1, "zeros")


@pytest.mark.parametrize("is_backward", [False, True])
def test_outputs_of_a_bank_beyond_the_offsets_are_gathered_by_pytorch(monkeypatch, is_backward):
    pytest.importorskip("triton", reason="Triton is not installed")
    monkeypatch.setattr("smoe.ops.triton._planes.why_not_for", lambda *_: None)

    def dense(*arguments: object, gather: object = None, scatter: object = None) -> Any:
        del arguments
        return "pytorch" if gather is gather_experts or scatter is scatter_experts else "triton"

    def sparse(*arguments: object) -> Any:
        return f"sparse, {len(arguments)} arguments"

    both = Implementation(dense, dense)
    convolution = GpuConvolution(lambda *_: "a reason", lambda: Implementation(sparse, sparse), both)
    # 64 samples and 256 filters: 2^14 outputs at each pixel.
    assert choose(convolution, 2**17 - 4, is_backward=is_backward) == "pytorch"
    assert choose(convolution, 2**17 - 5, is_backward=is_backward) == "triton"
    convolution = dataclasses.replace(
        convolution, why_not_sparse=lambda *arguments: None if len(arguments) == 6 else "wrong arguments"
    )
    assert choose(convolution, 7, is_backward=is_backward) == f"sparse, {9 if is_backward else 6} arguments"


def test_tiles_fit_the_sides_of_a_product():
    for direction in ("forward", "input_gradient", "weight_gradient", "atomic_weight_gradient"):
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
        "assert found <= {'smoe.ops.triton.availability', 'smoe.ops.triton._planes'}, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
