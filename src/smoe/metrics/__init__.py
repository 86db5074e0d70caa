"""Metrics: statistics of a batch, their sums over a data set, and the reduction of the sums to a value."""

from __future__ import annotations

from smoe.metrics.accuracy import Accuracy, ClassErrors, class_ranks, confusion_matrix
from smoe.metrics.anomaly_correlation import AnomalyCorrelation
from smoe.metrics.ensemble import EnsembleCRPS, EnsembleSpreadSkill, RankHistogram
from smoe.metrics.errors import MeanAbsoluteError, MeanSquaredError
from smoe.metrics.gaussian import EECRPS, EfiDates, GaussianCRPS, GaussianSpreadSkill, PitHistogram
from smoe.metrics.latitude_weighted import (
    LatitudeWeightedMAE,
    LatitudeWeightedRMSE,
    LatitudeWeightedScore,
    MeanOfRootsRMSE,
)
from smoe.metrics.mean_cross_entropy import MeanCrossEntropy
from smoe.metrics.mean_loss import MeanLoss
from smoe.metrics.metric import Metric, metric_names
from smoe.metrics.metric_sums import MetricSums
from smoe.metrics.percent_within import PercentWithin

__all__ = [
    "EECRPS",
    "Accuracy",
    "AnomalyCorrelation",
    "ClassErrors",
    "EfiDates",
    "EnsembleCRPS",
    "EnsembleSpreadSkill",
    "GaussianCRPS",
    "GaussianSpreadSkill",
    "LatitudeWeightedMAE",
    "LatitudeWeightedRMSE",
    "LatitudeWeightedScore",
    "MeanAbsoluteError",
    "MeanCrossEntropy",
    "MeanLoss",
    "MeanOfRootsRMSE",
    "MeanSquaredError",
    "Metric",
    "MetricSums",
    "PercentWithin",
    "PitHistogram",
    "RankHistogram",
    "class_ranks",
    "confusion_matrix",
    "metric_names",
]
