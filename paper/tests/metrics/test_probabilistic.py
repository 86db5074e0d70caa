from __future__ import annotations

import math

import pytest
import scoringrules
import torch
from torch import Tensor

from smoe.training.task import Metric
from smoe_paper.metrics import (
    EECRPS,
    GaussianCRPS,
)


def score(metric: Metric, prediction: Tensor, target: Tensor) -> dict[str, float]:
    return metric.values(metric.totals(prediction, target))


def random_forecasts() -> tuple[Tensor, Tensor]:
    """Outputs of a network, and truth, mean, spread and EFI, of 5 samples."""
    generator = torch.Generator().manual_seed(1)
    output = 0.5 * torch.randn(5, 2, 7, 6, generator=generator, dtype=torch.float64)
    target = torch.rand(5, 4, 7, 6, generator=generator, dtype=torch.float64)
    target[:, 0] += torch.randn(5, 7, 6, generator=generator, dtype=torch.float64)
    target[:, 3] = 2 * target[:, 3] - 1
    return output, target


def test_gaussian_scores_are_those_of_scoringrules() -> None:
    output, target = random_forecasts()
    mean = output[:, 0] * target[:, 2] + target[:, 1]
    std = output[:, 1].exp() * target[:, 2]
    expected = scoringrules.crps_normal(target[:, 0].numpy(), mean.numpy(), std.numpy())
    assert score(GaussianCRPS(), output, target)["crps"] == pytest.approx(expected.mean(), rel=1e-12)
    efi = target[:, 3].abs().numpy()
    assert score(EECRPS(), output, target)["eecrps"] == pytest.approx((efi * expected).mean(), rel=1e-12)


def test_dates_without_an_efi_do_not_count_and_a_hole_in_one_is_told() -> None:
    output, target = random_forecasts()
    expected = score(EECRPS(), output[1:], target[1:])
    target[0, 3] = math.nan
    assert score(EECRPS(), output, target) == pytest.approx(expected)
    assert math.isnan(score(EECRPS(), output[:1], target[:1])["eecrps"])
    target[1, 3, 2, 2] = math.nan
    assert math.isnan(score(EECRPS(), output, target)["eecrps"])


@pytest.mark.parametrize("channel", [0, 1, 2])
def test_not_a_number_is_told(channel: int) -> None:
    output, target = random_forecasts()
    target[1, channel, 2, 3] = math.nan
    for metric in (GaussianCRPS(), EECRPS()):
        assert all(math.isnan(value) for value in score(metric, output, target).values())
