"""On the meta device there are no values: an implementation that reads one on the host raises an error.

Operators have shapes of their own there, so the dense implementations, which serve accelerators, are called directly.
"""

from __future__ import annotations

import pytest
import torch

from smoe.ops._classification import _dense as dense_training
from smoe.ops._conv_kernels import assert_in_range, dense_routed_conv, dense_routed_conv_backward
from smoe.ops._gather import gather_experts, routed_bias, scatter_experts
from smoe.ops._probing import at_slots, disturb, draw_challenge, draw_disturbance, exchange_scores, observe
from smoe.ops._quantile import _dense as dense_quantile
from smoe.ops._routed_conv import local_conv2d, routed_conv2d
from smoe.ops._routing import _dense as dense_top_experts
from smoe.ops._routing import _dense_families


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def test_reading_a_value_raises_an_error():
    with pytest.raises((RuntimeError, NotImplementedError)):
        bool(meta(1) > 0)


def test_range_of_indices():
    assert_in_range(meta(1, 2, 5, dtype=torch.int32), 3)
    assert_in_range(torch.tensor([[[0, 2]]]), 3)
    for wrong in (-1, 3):
        with pytest.raises(RuntimeError, match=r"indices must be in \[0, 2\] for 3 experts"):
            assert_in_range(torch.tensor([[[0, wrong]]]), 3)


@pytest.mark.parametrize("num_samples", [1, 3])
@pytest.mark.parametrize("num_selected", [1, 4, 18])
def test_top_experts(num_selected, num_samples):
    for dense in (dense_top_experts, _dense_families):
        indices = dense(meta(num_samples, 20, 35), num_selected)
        assert indices.is_meta and indices.dtype == torch.int32
        assert indices.shape == (num_samples, num_selected, 35)


@pytest.mark.parametrize("size", [100, 20_000])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_error_quantile(dtype, size):
    actual = dense_quantile(meta(3, 2, size, dtype=dtype), 0.3)
    assert actual.is_meta and actual.shape == (3,)
    assert actual.dtype == torch.promote_types(dtype, torch.float32)


@pytest.mark.parametrize("trains_gate", [False, True])
@pytest.mark.parametrize("damping", [None, 0.0, 0.1])
@pytest.mark.parametrize("num_samples", [1, 3])
@pytest.mark.parametrize("num_selected", [2, 4])
def test_train_routing(num_selected, num_samples, damping, trains_gate):
    error, scores = meta(3, 2 * num_selected, 35), meta(num_samples, 5, 35)
    indices = meta(num_samples, num_selected, 35, dtype=torch.int32)
    unit, scale = meta(dtype=torch.float64), meta(dtype=torch.float64)
    count = meta(dtype=torch.int64)
    damped, gradient = dense_training(
        error, scores, indices, unit, scale, count, 2, trains_gate, 1.0, 0.3, damping, 1e-5, 1e-3
    )
    assert damped.is_meta and damped.shape == error.shape
    assert gradient.shape == (scores.shape if trains_gate else (0,))


@pytest.mark.parametrize("padding_mode", ["zeros", "circular", "longitude"])
@pytest.mark.parametrize("num_samples", [1, 3])
def test_routed_convolution(num_samples, padding_mode):
    input, weight, indices = meta(3, 4, 5, 7), meta(12, 4, 3, 3), meta(num_samples, 2, 35, dtype=torch.int32)
    output = dense_routed_conv(input, weight, indices, 2, 1, padding_mode)
    assert output.is_meta and output.shape == (3, 4, 5, 7)
    by_input, by_weight = dense_routed_conv_backward(
        output, input, weight, indices, 2, 1, padding_mode, needs_input=True, needs_weight=True
    )
    assert by_input.shape == input.shape and by_weight.shape == weight.shape
    # The public function as well: its checks of the indices are for the CPU only.
    leaves = input.requires_grad_(), weight.requires_grad_()
    routed_conv2d(*leaves, indices, expert_channels=2, padding_mode=padding_mode).sum().backward()
    assert weight.grad is not None and weight.grad.shape == weight.shape


def test_gathering_and_other_small_operations():
    outputs, indices = meta(3, 12, 5, 7).requires_grad_(), meta(1, 2, 35, dtype=torch.int32)
    selected = gather_experts(outputs, indices, 2)
    selected.sum().backward()
    assert selected.shape == (3, 4, 5, 7) and outputs.grad is not None
    assert scatter_experts(selected, indices, 6, 2).shape == outputs.shape
    assert routed_bias(meta(12), indices, 2).shape == (1, 4, 35)
    assert local_conv2d(meta(3, 4, 5, 7), meta(2, 5, 7, 4, 3, 3)).shape == (3, 2, 5, 7)


def test_probing():
    indices, scores = meta(1, 2, 70, dtype=torch.int32), meta(5, 70)
    challenge = draw_challenge(indices, 5, 3)
    disturbance = draw_disturbance(4, 70, 7, scores.device)
    selected, difference = meta(4, 6, 70), meta(4, 3, 70)
    assert at_slots(selected, challenge.slots, 3).shape == difference.shape
    disturb(selected, difference, challenge.slots, disturbance)
    seen = observe(selected, difference, challenge.slots, disturbance, meta(dtype=torch.float64))
    exchange_scores(scores, indices, challenge, seen.slopes > 0)
    assert seen.curvature.shape == (2,)
