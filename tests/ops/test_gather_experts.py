from __future__ import annotations

import pytest
import torch

from smoe.ops import gather_experts
from smoe.ops._gather import scatter_experts


def make(expert_channels: int, per_sample: bool, grid: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    outputs = torch.randn(2, 3 * expert_channels, *grid, dtype=torch.float64)
    indices = torch.rand(2 if per_sample else 1, 3, outputs[0, 0].numel()).argsort(dim=1)[:, :2].int()
    return outputs, indices


@pytest.mark.parametrize(
    ("expert_channels", "per_sample", "grid"), [(1, True, (5,)), (2, False, (2, 4)), (2, True, (2, 3, 2))]
)
def test_equals_loops(expert_channels, per_sample, grid):
    outputs, indices = make(expert_channels, per_sample, grid)
    outputs.requires_grad_()
    actual = gather_experts(outputs, indices, expert_channels)
    error = torch.randn_like(actual)
    (gradient,) = torch.autograd.grad(actual, outputs, error)
    expected, expected_gradient = torch.empty_like(actual), torch.zeros_like(outputs)
    for b in range(2):
        for s in range(2):
            for f in range(expert_channels):
                for p, pixel in enumerate(
                    torch.cartesian_prod(*map(torch.arange, grid)).reshape(-1, len(grid)).tolist()
                ):
                    expert = int(indices[b if per_sample else 0, s, p])
                    slot, channel = s * expert_channels + f, expert * expert_channels + f
                    expected[b, slot][tuple(pixel)] = outputs.detach()[b, channel][tuple(pixel)]
                    expected_gradient[b, channel][tuple(pixel)] = error[b, slot][tuple(pixel)]
    assert torch.equal(actual, expected)
    assert torch.equal(gradient, expected_gradient)
    assert torch.equal(scatter_experts(error, indices, 3, expert_channels), expected_gradient)


@pytest.mark.parametrize("expert_channels", [1, 2])
def test_memory_format_is_kept_in_both_directions(expert_channels):
    outputs, indices = make(expert_channels, False, (3, 4))
    expected = gather_experts(outputs, indices, expert_channels)
    assert expected.is_contiguous()
    last = outputs.to(memory_format=torch.channels_last).requires_grad_()
    actual = gather_experts(last, indices, expert_channels)
    assert torch.equal(actual, expected)
    assert actual.is_contiguous(memory_format=torch.channels_last)
    error = torch.randn_like(expected).to(memory_format=torch.channels_last)
    (gradient,) = torch.autograd.grad(actual, last, error)
    assert gradient.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(gradient, scatter_experts(error.contiguous(), indices, 3, expert_channels))


def test_derivatives_of_any_order_and_vmap():
    outputs, indices = make(2, True, (2, 3))
    outputs.requires_grad_()

    def function(values: torch.Tensor) -> torch.Tensor:
        return gather_experts(values, indices, 2).pow(3)

    assert torch.autograd.gradcheck(function, outputs)
    assert torch.autograd.gradgradcheck(function, outputs)
    jacobian = torch.func.jacrev(function)(outputs.detach())
    torch.testing.assert_close(jacobian, torch.autograd.functional.jacobian(function, outputs.detach()))


def test_wrong_routings_are_refused():
    outputs = torch.zeros(2, 3, 2, 4)
    with pytest.raises(
        ValueError, match=r"P = 8, the pixels of the experts' output grid \(2, 4\), got shape \(1, 1, 16\)"
    ):
        gather_experts(outputs, torch.zeros(1, 1, 16, dtype=torch.int32))
    with pytest.raises(ValueError, match=r"got shape \(1, 2, 4\)"):
        gather_experts(outputs, torch.zeros(1, 2, 4, dtype=torch.int32))
    with pytest.raises(ValueError, match="for 3 samples but the experts' output has 2"):
        gather_experts(outputs, torch.zeros(3, 1, 8, dtype=torch.int32))
