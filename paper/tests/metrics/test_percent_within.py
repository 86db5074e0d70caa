from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from smoe_paper.metrics import PercentWithin


def percent(prediction: torch.Tensor, target: torch.Tensor, **arguments: float) -> float:
    metric = PercentWithin(**arguments)  # type: ignore[arg-type]
    return metric.values(metric.totals(prediction, target))[metric.names[0]]


def test_two_by_two() -> None:
    target = torch.tensor([[1.0, -2.0], [4.0, 0.0]])
    # Bounds 0.01, 0.02, 0.04, 1e-8; differences 0.009 (in), 0.03 (out), 0.039 (in), 2e-8 (out): 2 of 4
    prediction = torch.tensor([[1.009, -2.03], [3.961, 2e-8]])
    assert percent(prediction, target) == 50.0
    # A target of 0 is met by differences up to 1e-8: 3 of 4
    prediction[1, 1] = 0.9e-8
    assert percent(prediction, target) == 75.0


def test_tolerance_is_relative_to_the_target() -> None:
    # |101 - 100| = 1 is 1 % of 100; |1.02 - 1.01| = 0.01 is less than 1 % of 1.02 and less than 1 % of 1.01
    assert percent(torch.tensor([101.0, 1.02]), torch.tensor([100.0, 1.01])) == 100.0
    # |100 - 101.005| = 1.005 is within 1 % of 101.005 and not of 100
    assert percent(torch.tensor([100.0]), torch.tensor([101.005])) == 100.0
    assert percent(torch.tensor([101.005]), torch.tensor([100.0])) == 0.0


def test_the_bound_itself_is_within() -> None:
    # Powers of two, so that nothing is rounded: |1.25 - 1| = 0.25 * 1
    arguments = {"tolerance": 0.25, "absolute_tolerance": 0.0}
    assert percent(torch.tensor([1.25]), torch.tensor([1.0]), **arguments) == 100.0
    assert percent(torch.tensor([1.25 + 2**-22]), torch.tensor([1.0]), **arguments) == 0.0


def test_regions() -> None:
    region_map = np.array([[0, 1], [1, 2]])
    metric = PercentWithin(region_map=region_map)
    target = torch.ones(2, 1, 2, 2)
    prediction = torch.tensor([[[[1.0, 1.0], [2.0, 2.0]]], [[[1.0, 1.0], [1.0, 2.0]]]])
    totals = metric.totals(prediction, target)
    # region 0: 2 of 2; region 1: 3 of 4 (one wrong in the first sample); region 2: 0 of 2
    assert totals.tolist() == [[5, 8], [2, 2], [3, 4], [0, 2]]
    assert metric.values(totals) == {
        "within_1_percent": 62.5,
        "within_1_percent/region_0": 100.0,
        "within_1_percent/region_1": 75.0,
        "within_1_percent/region_2": 0.0,
    }


@pytest.mark.parametrize("count", [1, 3, 7, 8_192_000, 10**13])
def test_one_hundred_means_all(count: int) -> None:
    metric = PercentWithin()
    assert metric.values(torch.tensor([[count, count]], dtype=torch.float64)) == {"within_1_percent": 100.0}
    almost = metric.values(torch.tensor([[count - 1, count]], dtype=torch.float64))
    assert almost["within_1_percent"] < 100.0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_never_within(value: float) -> None:
    bad, good = torch.tensor([value, 1.0]), torch.tensor([1.0, 1.0])
    assert percent(bad, good) == 50.0
    assert percent(good, bad) == 50.0
    assert percent(bad, bad) == 50.0


def test_pictures_of_another_size_are_refused() -> None:
    metric = PercentWithin(region_map=np.array([[0, 1], [1, 0]]))
    for shape in ((1, 1, 4), (1, 4, 1), (4,), (1, 1, 2, 4)):
        with pytest.raises(ValueError, match=r"region map's shape \(2, 2\), got"):
            metric.totals(torch.zeros(shape), torch.zeros(shape))
