"""What only a GPU can show. Skipped without one; the same operators are proven in the interpreter beside this file."""

from __future__ import annotations

import copy
import os

import pytest
import torch
import torch.nn.functional as F

from smoe.nn import SpatialMoE2d
from smoe.ops import routed_conv2d, top_experts
from smoe.ops._conv_kernels import dense_routed_conv
from smoe.ops._families import sample_families
from smoe.ops.triton._choice import why_not_sparse

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU; PyTorch finds no CUDA device"),
    pytest.mark.skipif(os.environ.get("SMOE_BACKEND") != "triton", reason="needs SMOE_BACKEND=triton"),
]

# Sparse kernels are chosen for it on every generation: B * X / E = 256.
BATCH, CHANNELS, EXPERTS, SELECTED, GRID = 64, 32, 128, 32, (6, 10)


def make_tensors(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    input = torch.randn(BATCH, CHANNELS, *GRID, device="cuda", dtype=dtype).requires_grad_()
    weight = torch.randn(EXPERTS, CHANNELS, 3, 3, device="cuda", dtype=dtype).requires_grad_()
    indices = top_experts(torch.randn(1, EXPERTS, GRID[0] * GRID[1], device="cuda"), SELECTED)
    error = torch.randn(BATCH, SELECTED, *GRID, device="cuda", dtype=dtype)
    assert why_not_sparse(input, weight, indices, 1) is None
    return input, weight, indices, error


RULES = [None, "rc", "straight_through", "end_to_end", "frozen"]


def make_layer(rule: str | None = None) -> SpatialMoE2d:
    order = None if rule is None else "score"
    return SpatialMoE2d.from_experts(
        CHANNELS, EXPERTS, SELECTED, spatial_shape=GRID, rule=rule, order=order, damping=0.1, device="cuda"
    )


def train_step(layer: SpatialMoE2d, input: torch.Tensor, target: torch.Tensor) -> None:
    F.mse_loss(layer(input), target).backward()


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    input = torch.randn(BATCH, CHANNELS, *GRID, device="cuda").contiguous(memory_format=torch.channels_last)
    return input, torch.randn(BATCH, SELECTED, *GRID, device="cuda")


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float16, 4e-3), (torch.bfloat16, 3e-2)])
def test_sparse_equals_dense_in_float64(dtype, tolerance):
    input, weight, indices, error = make_tensors(dtype)
    with torch.backends.cudnn.flags(allow_tf32=False):
        output = routed_conv2d(input, weight, indices)
        gradients = torch.autograd.grad(output, (input, weight), error)
    exact_input, exact_weight = (tensor.detach().double().requires_grad_() for tensor in (input, weight))
    expected = dense_routed_conv(exact_input, exact_weight, indices)
    expected_gradients = torch.autograd.grad(expected, (exact_input, exact_weight), error.double())
    for actual, truth in zip((output, *gradients), (expected, *expected_gradients), strict=True):
        largest = float(truth.detach().abs().max())
        torch.testing.assert_close(actual.double(), truth, rtol=0, atol=tolerance * largest)


def test_opcheck():
    input, weight, indices, _ = make_tensors(torch.float32)
    torch.library.opcheck(torch.ops.smoe.routed_conv2d.default, (input, weight, indices, 1, 1, "zeros", None))
    scores = torch.randn(1, EXPERTS, 60, device="cuda")
    torch.library.opcheck(torch.ops.smoe.top_experts.default, (scores, SELECTED))
    seed = torch.tensor(7, device="cuda")
    torch.library.opcheck(torch.ops.smoe.family_experts.default, (scores, SELECTED, seed, 0.01))
    torch.library.opcheck(torch.ops.smoe.error_quantile.default, (torch.randn(4, 999, device="cuda"), 0.3))


def test_families_are_sampled_as_on_a_cpu():
    scores, seed = torch.randn(1, EXPERTS, 999), torch.tensor(2**40 + 5)
    expected = sample_families(scores, SELECTED, seed, 0.7)
    assert torch.equal(sample_families(scores.cuda(), SELECTED, seed.cuda(), 0.7).cpu(), expected)


@pytest.mark.parametrize("rule", RULES)
def test_step_never_waits_for_the_device(batch, rule):
    layer = make_layer(rule)
    train_step(layer, *batch)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            train_step(layer, *batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")


# The other rules count their passes on the host, or draw noise that differs from step to step.
@pytest.mark.parametrize("rule", ["rc", "end_to_end"])
def test_step_is_captured_in_a_graph(batch, rule):
    layer = make_layer(rule)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            layer.zero_grad(set_to_none=True)
            train_step(layer, *batch)
    torch.cuda.current_stream().wait_stream(stream)
    expected = {
        name: parameter.grad.clone() for name, parameter in layer.named_parameters() if parameter.grad is not None
    }
    layer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        train_step(layer, *batch)
    graph.replay()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None and torch.equal(parameter.grad, expected[name]), name


@pytest.mark.parametrize("rule", [None, "rc"])
def test_step_repeats_bit_by_bit(batch, rule):
    layer = make_layer(rule)
    other = copy.deepcopy(layer)
    torch.use_deterministic_algorithms(True)
    try:
        for net in (layer, other):
            torch.manual_seed(0)
            train_step(net, *batch)
    finally:
        torch.use_deterministic_algorithms(False)
    for (name, parameter), twin in zip(layer.named_parameters(), other.parameters(), strict=True):
        assert parameter.grad is not None and twin.grad is not None and torch.equal(parameter.grad, twin.grad), name


def test_memory_does_not_grow_with_the_bank():
    input, weight, indices, _ = make_tensors(torch.bfloat16)
    everything = BATCH * EXPERTS * GRID[0] * GRID[1] * 2
    with torch.no_grad():
        routed_conv2d(input, weight, indices)
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        routed_conv2d(input, weight, indices)
        torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() - before < everything
