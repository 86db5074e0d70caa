from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from smoe.training.task import MeanLoss, MetricSums
from smoe_paper.metrics import MeanAbsoluteError, MeanSquaredError, PercentWithin
from smoe_paper.probabilistic_metrics import GaussianSpreadSkill


def test_a_small_last_batch_counts_by_its_pixels() -> None:
    target = torch.zeros(3, 1, 1, 2)
    prediction = torch.tensor([1.0, 1.0, 1.0, 1.0, 4.0, 4.0]).view(3, 1, 1, 2)
    sums = MetricSums([MeanSquaredError(), MeanAbsoluteError()])
    sums.add(prediction[:2], target[:2])
    sums.add(prediction[2:], target[2:])
    # (4 * 1 + 2 * 16) / 6 and (4 * 1 + 2 * 4) / 6; a mean of batch means would be 8.5 and 2.5.
    assert sums.values() == {"mse": 6.0, "mae": 2.0}
    assert sums.values() == {"mse": 6.0, "mae": 2.0}


def test_metrics_keep_their_own_numbers_of_totals() -> None:
    region_map = torch.tensor([[0, 1]])
    metrics = [PercentWithin(region_map=region_map), MeanSquaredError()]
    target = torch.tensor([[1.0, 2.0]])
    sums = MetricSums(metrics)
    sums.add(torch.tensor([[1.0, 3.0]]), target)
    assert sums.values() == {
        "within_1_percent": 50.0,
        "within_1_percent/region_0": 100.0,
        "within_1_percent/region_1": 0.0,
        "mse": 0.5,
    }


def test_sums_are_in_double_precision() -> None:
    # In float32, 1e8 + 1 is 1e8.
    sums = MetricSums([MeanAbsoluteError()])
    sums.add(torch.tensor([1e8]), torch.zeros(1))
    for _ in range(9):
        sums.add(torch.ones(1), torch.zeros(1))
    assert sums.values()["mae"] == (1e8 + 9) / 10


def test_processes_are_joined_by_one_reduction() -> None:
    reduced: list[torch.Tensor] = []

    def double(totals: torch.Tensor) -> torch.Tensor:
        reduced.append(totals)
        # In place, as torch's own reductions work.
        return totals.mul_(torch.arange(1, totals.numel() + 1))

    sums = MetricSums([MeanSquaredError(), MeanAbsoluteError()])
    sums.add(torch.full((2,), 3.0), torch.zeros(2))
    # Sums and counts (18, 2) and (6, 2), times 1, 2, 3 and 4.
    assert sums.values(double) == {"mse": 18.0 / 4.0, "mae": 18.0 / 8.0}
    assert len(reduced) == 1
    assert sums.values() == {"mse": 9.0, "mae": 3.0}


def test_without_a_batch_there_is_no_value() -> None:
    with pytest.raises(ValueError, match="mse needs at least one pixel"):
        MetricSums([MeanSquaredError()]).values()
    assert MetricSums([]).values() == {}


def test_two_metrics_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="a name of its own, got 'spread_skill' 2 times"):
        MetricSums([GaussianSpreadSkill(), MeanSquaredError(), GaussianSpreadSkill()])


def test_the_mean_loss_weighs_a_small_last_batch_by_its_samples() -> None:
    metric = MeanLoss(F.mse_loss)
    first = metric.totals(torch.tensor([[1.0], [3.0]]), torch.zeros(2, 1))
    last = metric.totals(torch.tensor([[2.0]]), torch.zeros(1, 1))
    # (1 + 9 + 4) / 3
    assert metric.values(first + last)["loss"] == pytest.approx(14 / 3)
