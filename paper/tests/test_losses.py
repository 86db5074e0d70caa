"""Losses of the experiments: by hand, by other packages, and what they refuse."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scoringrules
import torch
from torch import Tensor

from smoe.losses import gaussian_crps, latitude_weights
from smoe_paper.losses import LatitudeWeightedMSE, corrected_crps, gaussian_crps_loss, gaussian_head


def crps_by_torch(mean: Tensor, std: Tensor, truth: Tensor) -> Tensor:
    """The closed form in torch's own operations, which autograd differentiates."""
    z = (truth - mean) / std
    normal = torch.distributions.Normal(0.0, 1.0)
    return std * (z * (2 * normal.cdf(z) - 1) + 2 * normal.log_prob(z).exp() - 1 / math.sqrt(math.pi))


def random_forecasts(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    mean, log_std, truth = (torch.randn(4, 5, 6, generator=generator, dtype=torch.float64) for _ in range(3))
    return mean.to(dtype), log_std.exp().to(dtype), (2 * truth).to(dtype)


def test_gaussian_crps_is_that_of_scoringrules() -> None:
    mean, std, truth = random_forecasts()
    expected = scoringrules.crps_normal(truth.numpy(), mean.numpy(), std.numpy())
    np.testing.assert_allclose(gaussian_crps(mean, std, truth).numpy(), expected, rtol=1e-12, atol=1e-14)


def test_gradients_are_those_of_autograd() -> None:
    tensors = [tensor.requires_grad_() for tensor in random_forecasts()]
    weight = torch.randn(4, 5, 6, dtype=torch.float64)
    actual = torch.autograd.grad((gaussian_crps(*tensors) * weight).sum(), tensors)
    expected = torch.autograd.grad((crps_by_torch(*tensors) * weight).sum(), tensors)
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert torch.autograd.gradgradcheck(gaussian_crps, tuple(tensor[:1, :2, :2] for tensor in tensors))


@pytest.mark.parametrize("std", [1e-3, 1e-20, 1e-42, 0.0])
def test_a_small_spread_gives_the_absolute_error_and_finite_gradients(std: float) -> None:
    mean = torch.tensor([1.0, 1.0, 1.0], requires_grad=True)
    spread = torch.full((3,), std, requires_grad=True)
    score = gaussian_crps(mean, spread, torch.tensor([3.0, -1.0, 1.0]))
    # An exact forecast scores std * (2 phi(0) - 1 / sqrt(pi)) = 0.2337 std.
    torch.testing.assert_close(score, torch.tensor([2.0, 2.0, 0.2337 * std]), atol=std, rtol=0.0)
    score.sum().backward()
    assert mean.grad is not None and mean.grad.tolist() == [-1.0, 1.0, 0.0]
    far, centre = -1 / math.sqrt(math.pi), 2 / math.sqrt(2 * math.pi) - 1 / math.sqrt(math.pi)
    assert spread.grad is not None and spread.grad.tolist() == pytest.approx([far, far, centre])


def test_the_loss_is_the_crps_of_the_head() -> None:
    generator = torch.Generator().manual_seed(0)
    output = 0.3 * torch.randn(2, 2, 3, 4, generator=generator)
    target = torch.rand(2, 4, 3, 4, generator=generator) + torch.tensor([50.0, 50.0, 0.5, 0.0])[:, None, None]
    mean, std = gaussian_head(output, target[:, 1], target[:, 2])
    torch.testing.assert_close(mean, output[:, 0] * target[:, 2] + target[:, 1])
    expected = crps_by_torch(mean.double(), std.double(), target[:, 0].double())
    torch.testing.assert_close(corrected_crps(output, target).double(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gaussian_crps_loss(output, target).double(), expected.mean(), rtol=1e-5, atol=0.0)


def test_arithmetic() -> None:
    # cos 60 = 1/2, cos 0 = 1: mean 3/4, so the weights are 2/3 and 4/3.
    loss = LatitudeWeightedMSE((60.0, 0.0))
    torch.testing.assert_close(loss.weights[:, 0], torch.tensor([2 / 3, 4 / 3], dtype=torch.float64))
    prediction = torch.tensor([[[[1.0, 2.0], [0.0, 3.0]]]])
    target = torch.tensor([[[[0.0, 0.0], [0.0, 0.0]]]])
    # (2/3 (1 + 4) + 4/3 (0 + 9)) / 4 = (10/3 + 36/3) / 4 = 46/12
    torch.testing.assert_close(loss(prediction, target), torch.tensor(46 / 12))


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="from -90 to 90, got 100"):
        latitude_weights((0.0, 100.0))
    with pytest.raises(ValueError, match=r"must be \(B, C, 2, W\), got \(1, 1, 3, 2\)"):
        LatitudeWeightedMSE((0.0, 1.0))(torch.zeros(1, 1, 3, 2), torch.zeros(1, 1, 3, 2))
