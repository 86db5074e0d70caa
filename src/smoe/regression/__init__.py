"""Location-aware regression on a user's own gridded data: from two data sets to predictions and a routing map."""

from __future__ import annotations

from smoe.regression.grid_regressor import GridRegressor
from smoe.regression.options import RegressorOptions
from smoe.regression.scores import ScoreTable

__all__ = ["GridRegressor", "RegressorOptions", "ScoreTable"]
