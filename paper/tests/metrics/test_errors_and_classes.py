"""Errors, shares within a tolerance and accuracies, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from smoe.training.task import Metric
from smoe_paper.metrics import (
    Accuracy,
    MeanAbsoluteError,
    MeanCrossEntropy,
    MeanSquaredError,
    PercentWithin,
    class_ranks,
)

LOGITS = torch.tensor([[3.0, 2.0, 1.0], [0.0, 5.0, 4.0], [1.0, 2.0, 3.0], [9.0, 0.0, 1.0]])
CLASSES = torch.tensor([0, 2, 0, 0])


def test_accuracy_over_batches():
    metric = Accuracy()
    totals = metric.totals(LOGITS[:3], CLASSES[:3]) + metric.totals(LOGITS[3:], CLASSES[3:])
    # samples 0 and 3
    assert metric.values(totals) == {"accuracy": 50.0}


def test_a_constant_answer_is_not_right_everywhere():
    values = Accuracy().values(Accuracy().totals(torch.zeros(4, 4), torch.arange(4)))
    assert values["accuracy"] == 25.0


def test_not_a_number_is_wrong():
    logits = torch.tensor([[math.nan, 1.0], [2.0, math.nan], [1.0, 0.0]])
    assert class_ranks(logits, torch.tensor([1, 0, 0])).tolist() == [2, 2, 0]


def test_mean_cross_entropy_counts_samples():
    metric = MeanCrossEntropy()
    # softmax of (0, log 3) is (1/4, 3/4)
    logits = torch.tensor([[0.0, math.log(3.0)]] * 3)
    totals = metric.totals(logits[:2], torch.tensor([1, 1])) + metric.totals(logits[2:], torch.tensor([0]))
    assert metric.values(totals)["cross_entropy"] == pytest.approx(-(2 * math.log(0.75) + math.log(0.25)) / 3)


def test_refuses():
    with pytest.raises(ValueError, match=r"classes must be in \[0, 2\], got 0 to 3"):
        Accuracy().totals(torch.zeros(2, 3), torch.tensor([0, 3]))


PREDICTION = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
TARGET = torch.tensor([[1.0, 4.0], [0.0, 3.0]])


def test_mean_squared_error() -> None:
    metric = MeanSquaredError()
    totals = metric.totals(PREDICTION, TARGET)
    # (0^2 + 2^2 + 3^2 + 1^2) = 14 over 4 pixels
    assert totals.tolist() == [[14.0, 4.0]]
    assert metric.values(totals) == {"mse": 3.5}


def test_mean_absolute_error() -> None:
    metric = MeanAbsoluteError()
    totals = metric.totals(PREDICTION, TARGET)
    # 0 + 2 + 3 + 1 = 6 over 4 pixels
    assert totals.tolist() == [[6.0, 4.0]]
    assert metric.values(totals) == {"mae": 1.5}


def test_a_nan_is_not_hidden() -> None:
    prediction = torch.tensor([[math.nan, 2.0], [3.0, 4.0]])
    for metric, name in ((MeanSquaredError(), "mse"), (MeanAbsoluteError(), "mae")):
        assert math.isnan(metric.values(metric.totals(prediction, TARGET))[name])


def test_sums_are_kept_in_float64() -> None:
    # 2^24 + 1 is not a float32.
    metric = MeanAbsoluteError()
    prediction = torch.tensor([[2.0**24, 1.0], [0.0, 0.0]])
    assert metric.totals(prediction, torch.zeros(2, 2))[0, 0] == 2.0**24 + 1


METRICS = [PercentWithin(), PercentWithin(region_map=torch.tensor([[0, 1], [1, 0]])), MeanSquaredError()]


@pytest.mark.parametrize("metric", [*METRICS, MeanAbsoluteError()])
def test_batches_add_up_to_the_whole(metric: Metric) -> None:
    generator = torch.Generator().manual_seed(0)
    target = torch.rand(7, 1, 2, 2, generator=generator)
    prediction = target * (1 + 0.02 * torch.rand(7, 1, 2, 2, generator=generator))
    whole = metric.totals(prediction, target)
    assert whole.shape == (len(metric.names), 2) and whole.dtype == torch.float64
    batches = metric.totals(prediction[:5], target[:5]) + metric.totals(prediction[5:], target[5:])
    assert metric.values(batches) == pytest.approx(metric.values(whole), rel=1e-14)
    assert tuple(metric.values(whole)) == metric.names


@pytest.mark.parametrize("metric", [*METRICS, MeanAbsoluteError()])
def test_shapes_must_be_equal(metric: Metric) -> None:
    # Broadcasting (2, 2) over (3, 2, 2) would give a number, and a wrong one.
    with pytest.raises(ValueError, match=r"same shape, got \(3, 2, 2\) and \(2, 2\)"):
        metric.totals(torch.zeros(3, 2, 2), torch.zeros(2, 2))


@pytest.mark.parametrize("metric", [*METRICS, MeanAbsoluteError()])
def test_integers_are_refused(metric: Metric) -> None:
    with pytest.raises(ValueError, match=r"floating point, got torch\.int64 and torch\.float32"):
        metric.totals(torch.zeros(2, 2, dtype=torch.int64), torch.zeros(2, 2))


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
