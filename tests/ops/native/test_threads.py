"""Threads that call one layer in inference: results are equal."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from smoe import SpatialMoE2d, TensorGate
from smoe.ops._operators import native_library
from smoe_paper.baselines.gates import ConvGate

if native_library() is None:
    pytest.skip("the kernels are not built here; python -m smoe.ops.backends says why", allow_module_level=True)


@pytest.mark.parametrize("gate", [TensorGate(5, 2, (13, 11)), ConvGate(3, 5, 2)], ids=["tensor", "conv"])
def test_threads_that_share_a_layer_in_inference_compute_the_same(gate: torch.nn.Module) -> None:
    layer = SpatialMoE2d.from_experts(3, 5, 2, gate=gate).eval()  # type: ignore[arg-type]
    # Batches of one, some and many samples have kernels of their own.
    inputs = [torch.randn(size, 3, 13, 11) for size in (1, 3, 16, 1)]
    with torch.inference_mode():
        expected = [layer(input) for input in inputs]

    def compute(number: int) -> bool:
        # Inference mode belongs to a thread.
        with torch.inference_mode():
            return torch.equal(layer(inputs[number % 4]), expected[number % 4])

    with ThreadPoolExecutor(max_workers=8) as pool:
        assert all(pool.map(compute, range(400)))
