from __future__ import annotations

import math

import torch

from smoe_paper.metrics import MeanAbsoluteError, MeanSquaredError

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
