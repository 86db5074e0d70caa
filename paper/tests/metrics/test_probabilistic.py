from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scores.probability
import scoringrules
import torch
import xarray as xr
from torch import Tensor

from smoe.losses import latitude_weights
from smoe.training.task import Metric
from smoe_paper.probabilistic_metrics import (
    EECRPS,
    EfiDates,
    EnsembleCRPS,
    EnsembleSpreadSkill,
    GaussianCRPS,
    GaussianSpreadSkill,
    PitHistogram,
    RankHistogram,
)

# cos(0) = 1 and cos(60) = 1/2, whose mean is 3/4: the rows weigh 4/3 and 2/3.
LATITUDE = (0.0, 60.0)
GRID = np.linspace(90.0, -90.0, 7)


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


def random_ensemble(num_members: int = 5) -> tuple[Tensor, Tensor]:
    """Members and truth in whole numbers, so that there are ties."""
    generator = torch.Generator().manual_seed(2)
    members = (2 * torch.randn(4, num_members, 7, 6, generator=generator)).round().double()
    return members, (2.5 * torch.randn(4, 1, 7, 6, generator=generator)).round().double()


def as_arrays(members: Tensor, truth: Tensor) -> tuple[xr.DataArray, xr.DataArray]:
    forecast = xr.DataArray(members.numpy(), dims=("time", "member", "lat", "lon"), coords={"lat": GRID})
    return forecast, xr.DataArray(truth[:, 0].numpy(), dims=("time", "lat", "lon"), coords={"lat": GRID})


def values_of(result: object) -> np.ndarray:
    assert isinstance(result, xr.DataArray)
    return result.to_numpy()


def pixel_target(truth: list[list[float]], spread: float = 1.0) -> Tensor:
    """Of one sample, with the ensemble's mean 0."""
    values = torch.tensor(truth)
    return torch.stack([values, torch.zeros_like(values), torch.full_like(values, spread)])[None]


def test_crps_with_and_without_weights_by_hand() -> None:
    # A spread of exp(-60) is none: the score is the absolute error. Truth 3, 0 / 6, 0.
    # Mean 9/4; weighted (4/3 * 3 + 2/3 * 6) / 4 = 2.
    prediction = torch.stack([torch.zeros(2, 2), torch.full((2, 2), -60.0)])[None]
    target = pixel_target([[3.0, 0.0], [6.0, 0.0]])
    assert score(GaussianCRPS(), prediction, target) == {"crps": pytest.approx(9 / 4)}
    assert score(GaussianCRPS(LATITUDE), prediction, target) == {"crps_weighted": pytest.approx(2.0)}
    # |EFI| 1/2, 0 / 1, 0: (1.5 + 6) / 4; weighted (4/3 * 1.5 + 2/3 * 6) / 4.
    efi = torch.tensor([[[[-0.5, 0.0], [1.0, 0.0]]]])
    with_efi = torch.cat([target, efi], dim=1)
    assert score(EECRPS(), prediction, with_efi) == {"eecrps": pytest.approx(7.5 / 4)}
    assert score(EECRPS(LATITUDE), prediction, with_efi) == {"eecrps_weighted": pytest.approx(6.0 / 4)}


def test_gaussian_scores_are_those_of_scoringrules() -> None:
    output, target = random_forecasts()
    mean = output[:, 0] * target[:, 2] + target[:, 1]
    std = output[:, 1].exp() * target[:, 2]
    expected = scoringrules.crps_normal(target[:, 0].numpy(), mean.numpy(), std.numpy())
    weights = latitude_weights(GRID).numpy()[:, None]
    assert score(GaussianCRPS(), output, target)["crps"] == pytest.approx(expected.mean(), rel=1e-12)
    weighted = score(GaussianCRPS(GRID), output, target)["crps_weighted"]
    assert weighted == pytest.approx((weights * expected).mean(), rel=1e-12)
    efi = target[:, 3].abs().numpy()
    assert score(EECRPS(), output, target)["eecrps"] == pytest.approx((efi * expected).mean(), rel=1e-12)


def test_dates_without_an_efi_do_not_count_and_a_hole_in_one_is_told() -> None:
    output, target = random_forecasts()
    expected = score(EECRPS(), output[1:], target[1:])
    target[0, 3] = math.nan
    assert score(EECRPS(), output, target) == pytest.approx(expected)
    assert math.isnan(score(EECRPS(), output[:1], target[:1])["eecrps"])
    # How many were left out is told.
    assert score(EfiDates(), output, target) == {"efi_dates": len(target) - 1}
    assert score(EfiDates(), output[:1], target[:1]) == {"efi_dates": 0}
    target[1, 3, 2, 2] = math.nan
    assert math.isnan(score(EECRPS(), output, target)["eecrps"])


@pytest.mark.parametrize(
    ("fair", "method", "name"), [(False, "ecdf", "ensemble_crps"), (True, "fair", "fair_ensemble_crps")]
)
def test_ensemble_crps_is_that_of_scores(fair: bool, method: Any, name: str) -> None:
    members, truth = random_ensemble()
    forecast, observed = as_arrays(members, truth)
    theirs = values_of(
        scores.probability.crps_for_ensemble(forecast, observed, "member", method=method, preserve_dims="all")
    )
    weights = latitude_weights(GRID).numpy()[:, None]
    assert score(EnsembleCRPS(fair=fair), members, truth)[name] == pytest.approx(theirs.mean(), rel=1e-10)
    weighted = score(EnsembleCRPS(fair=fair, latitude=GRID), members, truth)[f"{name}_weighted"]
    assert weighted == pytest.approx((theirs * weights).mean(), rel=1e-10)


def test_spread_over_skill_by_hand() -> None:
    # Shift o0 * s = 1, spread exp(o1) * s = 2 * 2 = 4; truth 3, 1 / 1, 5: errors 2, 0 / 0, 4, mean square 5.
    prediction = torch.stack([torch.full((2, 2), 0.5), torch.full((2, 2), math.log(2.0))])[None]
    target = pixel_target([[3.0, 1.0], [1.0, 5.0]], spread=2.0)
    assert score(GaussianSpreadSkill(), prediction, target) == {"spread_skill": pytest.approx(math.sqrt(16 / 5))}
    # Weighted: squares 4, 0 / 0, 16 become (4/3 * 4 + 2/3 * 16) / 4 = 4.
    assert score(GaussianSpreadSkill(LATITUDE), prediction, target) == {"spread_skill_weighted": pytest.approx(2.0)}
    # Members 1 and 3: mean 2, unbiased variance 2, times 3/2 is 3. Truth 2, 2 / 2, 6: mean square 16 / 4.
    members = torch.tensor([1.0, 3.0])[None, :, None, None].expand(1, 2, 2, 2)
    truth = torch.tensor([[[[2.0, 2.0], [2.0, 6.0]]]])
    expected = {"ensemble_spread_skill": pytest.approx(math.sqrt(3 / 4))}
    assert score(EnsembleSpreadSkill(), members, truth) == expected
    assert score(EnsembleSpreadSkill(), members, torch.full((1, 1, 2, 2), 2.0))["ensemble_spread_skill"] == math.inf


def test_reliable_forecasts_have_a_ratio_of_one_and_flat_histograms() -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(200, 6, 20, 20, generator=generator)
    members, truth = drawn[:, :5], drawn[:, 5:]
    assert score(EnsembleSpreadSkill(), members, truth)["ensemble_spread_skill"] == pytest.approx(1.0, abs=0.01)
    assert list(score(RankHistogram(5), members, truth).values()) == pytest.approx([1 / 6] * 6, abs=0.005)
    target = torch.cat([truth, torch.zeros_like(truth), torch.ones_like(truth)], dim=1)
    output = torch.zeros(200, 2, 20, 20)
    assert score(GaussianSpreadSkill(), output, target)["spread_skill"] == pytest.approx(1.0, abs=0.01)
    assert list(score(PitHistogram(4), output, target).values()) == pytest.approx([1 / 4] * 4, abs=0.005)
    narrow = torch.stack([torch.zeros(200, 20, 20), torch.full((200, 20, 20), -1.0)], dim=1)
    shares = list(score(PitHistogram(4), narrow, target).values())
    # Half a distribution lies beyond 0.674 of its own width, 0.674 / e of the truth's: 2 (1 - Phi(0.248)) = 0.804.
    assert shares[0] + shares[3] == pytest.approx(0.804, abs=0.005)


def test_ranks_by_hand() -> None:
    # Members 1, 2, 2. Truth 0: rank 0. Truth 3: rank 3. Truth 1.5: rank 1. Truth 2 equals two: ranks 1, 2, 3 by thirds.
    members = torch.tensor([2.0, 1.0, 2.0])[None, :, None, None].expand(1, 3, 2, 2)
    truth = torch.tensor([[[[0.0, 3.0], [1.5, 2.0]]]])
    shares = [1 / 4, (1 + 1 / 3) / 4, 1 / 12, (1 + 1 / 3) / 4]
    assert list(score(RankHistogram(3), members, truth).values()) == pytest.approx(shares)
    # The first row weighs 4/3, the second 2/3.
    weighted = [1 / 3, (2 / 3 + 2 / 9) / 4, 2 / 9 / 4, (4 / 3 + 2 / 9) / 4]
    result = score(RankHistogram(3, LATITUDE), members, truth)
    assert list(result.values()) == pytest.approx(weighted)
    assert list(result) == ["rank_0_weighted", "rank_1_weighted", "rank_2_weighted", "rank_3_weighted"]


def test_ranks_with_ties_are_those_of_scores() -> None:
    members, truth = random_ensemble()
    forecast, observed = as_arrays(members, truth)
    theirs = values_of(scores.probability.rank_histogram(forecast, observed, "member"))
    assert list(score(RankHistogram(5), members, truth).values()) == pytest.approx(theirs.tolist(), rel=1e-12)
    weights = xr.DataArray(latitude_weights(GRID).numpy(), dims="lat", coords={"lat": GRID})
    theirs = values_of(scores.probability.rank_histogram(forecast, observed, "member", weights=weights))
    ours = list(score(RankHistogram(5, GRID), members, truth).values())
    assert ours == pytest.approx(theirs.tolist(), rel=1e-12)


def test_parts_by_hand() -> None:
    # Phi(-1) = 0.159 and Phi(1) = 0.841 of four parts, Phi(0) = 0.5, which the third holds, and 1.
    target = pixel_target([[-1.0, 1.0], [0.0, 50.0]])
    shares = score(PitHistogram(4), torch.zeros(1, 2, 2, 2), target)
    assert shares == {"pit_0": 0.25, "pit_1": 0.0, "pit_2": 0.25, "pit_3": 0.5}
    # Neither spread nor error: the middle.
    still = pixel_target([[0.0]], spread=0.0)
    assert score(PitHistogram(5), torch.zeros(1, 2, 1, 1), still)["pit_2"] == 1.0


@pytest.mark.parametrize("channel", [0, 1, 2])
def test_not_a_number_is_told(channel: int) -> None:
    output, target = random_forecasts()
    target[1, channel, 2, 3] = math.nan
    for metric in (GaussianCRPS(), EECRPS(), GaussianSpreadSkill(), PitHistogram(3)):
        assert all(math.isnan(value) for value in score(metric, output, target).values())
    members, truth = random_ensemble()
    members[1, channel, 2, 3] = math.nan
    for metric in (EnsembleCRPS(), EnsembleSpreadSkill(), RankHistogram(5)):
        assert all(math.isnan(value) for value in score(metric, members, truth).values())
    members, truth = random_ensemble()
    truth[1, 0, 2, 3] = math.nan
    assert all(math.isnan(value) for value in score(RankHistogram(5), members, truth).values())
