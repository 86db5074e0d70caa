"""Metrics: stateless, a statistic plus a reduction."""

from __future__ import annotations

from smoe.metrics.errors import MeanAbsoluteError, MeanSquaredError
from smoe.metrics.mean_loss import MeanLoss
from smoe.metrics.metric import Metric
from smoe.metrics.percent_within import PercentWithin

__all__ = ["MeanAbsoluteError", "MeanLoss", "MeanSquaredError", "Metric", "PercentWithin"]
