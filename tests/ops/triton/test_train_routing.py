from __future__ import annotations

import pytest
import torch

from definitions import define_routing


def compare_with_definition(
    num_experts: int,
    num_selected: int,
    device: torch.device,
    *,
    batch: int = 3,
    expert_channels: int = 1,
    num_pixels: int = 20,
    per_sample: bool = False,
    damping: float | None = 0.1,
    dtype: torch.dtype = torch.float32,
    channels_last: bool = False,
    loss_scale: float = 8.0,
) -> None:
    from smoe.ops.triton.train_routing import triton_train_routing_backward

    samples = batch if per_sample else 1
    scores = torch.randn(samples, num_experts, num_pixels, device=device)
    indices = torch.rand(scores.shape, device=device).argsort(dim=1)[:, :num_selected].int()
    error = torch.randn(batch, num_selected * expert_channels, num_pixels, device=device).to(dtype)
    if channels_last:
        error = error.transpose(1, 2).contiguous().transpose(1, 2)
    nonfinite = torch.zeros((), dtype=torch.int64, device=device)
    scale = torch.full((), loss_scale, dtype=torch.float64, device=device)
    damped, gradient = triton_train_routing_backward(
        *(error, scores, indices, None, scale, nonfinite, expert_channels, True, 0.5, 0.3, damping, 1e-5, 1e-3)
    )
    exact = error.cpu().double()
    definition = define_routing(
        exact / loss_scale, indices.cpu().expand(batch, -1, -1), num_experts, expert_channels, damping=damping
    )
    labels = definition.labels if per_sample else definition.labels.mean(dim=0, keepdim=True)
    expected = 0.5 * loss_scale * (scores.cpu().double().sigmoid() - labels) / scores.numel()
    assert damped.stride() == error.stride() and damped.dtype == dtype
    tolerance = 1e-6 if dtype == torch.float32 else 1e-3
    torch.testing.assert_close(damped.cpu().double(), definition.damped * loss_scale, rtol=tolerance, atol=1e-6)
    torch.testing.assert_close(gradient.cpu().double(), expected, rtol=1e-5, atol=1e-7)
    assert nonfinite == 0


@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("channels_last", [False, True])
def test_gate_and_damping(per_sample, channels_last, device):
    compare_with_definition(7, 3, device, per_sample=per_sample, channels_last=channels_last)


def test_experts_with_several_outputs(device):
    compare_with_definition(7, 3, device, expert_channels=2, channels_last=True)


def test_more_are_selected_than_not(device):
    # The label of the unselected is cut at 1.
    compare_with_definition(5, 4, device)


def test_half_precision(device):
    compare_with_definition(40, 17, device, dtype=torch.float16, num_pixels=150, batch=2)


@pytest.mark.parametrize("damping", [None, 0.0])
def test_dampings(damping, device):
    compare_with_definition(4, 2, device, damping=damping)


def run(error: torch.Tensor, scores: torch.Tensor, indices: torch.Tensor, *, trains_gate: bool = True):
    from smoe.ops.triton.train_routing import triton_train_routing_backward

    nonfinite = torch.zeros((), dtype=torch.int64, device=error.device)
    scale = torch.ones((), dtype=torch.float64, device=error.device)
    results = triton_train_routing_backward(
        *(error, scores, indices, None, scale, nonfinite, 1, trains_gate, 1.0, 0.3, 0.0, 0.0, 0.0)
    )
    return *results, nonfinite


# The interpreter computes with NumPy, which warns about inf - inf and 0 * inf.
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_error_that_is_not_finite_gives_no_gradient_and_is_counted(bad, device):
    error = torch.randn(2, 2, 9, device=device)
    error[1, 0, 4] = bad
    scores = torch.randn(1, 5, 9, device=device)
    indices = torch.rand(1, 5, 9, device=device).argsort(dim=1)[:, :2].int()
    damped, gradient, nonfinite = run(error, scores, indices)
    assert nonfinite == 1 and gradient.abs().amax() == 0
    assert not damped.isfinite().all()


def test_expanded_error(device):
    scores = torch.randn(1, 5, 9, device=device)
    indices = torch.rand(1, 5, 9, device=device).argsort(dim=1)[:, :2].int()
    error = torch.ones((), device=device).expand(3, 2, 9)
    damped, gradient, _ = run(error, scores, indices)
    # Equal errors do not exceed their quantile: nothing is wrong.
    assert torch.equal(damped, error) and damped.is_contiguous()
    _, expected, _ = run(error.contiguous(), scores, indices)
    assert torch.equal(gradient, expected)


def test_damping_without_a_gate_to_train(device):
    scores = torch.randn(1, 5, 9, device=device)
    indices = torch.rand(1, 5, 9, device=device).argsort(dim=1)[:, :2].int()
    error = torch.randn(3, 2, 9, device=device)
    trained, _, _ = run(error, scores, indices)
    damped, gradient, _ = run(error, scores, indices, trains_gate=False)
    assert torch.equal(damped, trained) and gradient.shape == (0,)
