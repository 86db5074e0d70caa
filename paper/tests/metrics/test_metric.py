from __future__ import annotations

import pytest
import torch

from smoe.training.task import Metric
from smoe_paper.metrics import MeanAbsoluteError, MeanSquaredError, PercentWithin

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


@pytest.mark.parametrize("metric", [*METRICS, MeanAbsoluteError()])
def test_no_pixels_have_no_value(metric: Metric) -> None:
    totals = metric.totals(torch.zeros(0, 1, 2, 2), torch.zeros(0, 1, 2, 2))
    with pytest.raises(ValueError, match=f"{metric.names[0]} needs at least one pixel, got a count of 0"):
        metric.values(totals)
