"""Location-aware regression on a user's own gridded data: from two data sets to predictions and a routing map.

The names below are loaded on first use: the options alone import no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smoe.regression._nets import UNet, start_as_torch  # noqa: F401
    from smoe.regression._options import RegressorOptions
    from smoe.regression._regressor import GridRegressor, load
    from smoe.regression._saved import is_model_folder
    from smoe.regression._scores import ScoreTable

__all__ = ["GridRegressor", "RegressorOptions", "ScoreTable", "is_model_folder", "load"]

_HOMES = {
    "GridRegressor": "_regressor",
    "load": "_regressor",
    "RegressorOptions": "_options",
    "ScoreTable": "_scores",
    "is_model_folder": "_saved",
    # For the experiment ENS-10, whose network it is.
    "UNet": "_nets",
    "start_as_torch": "_nets",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(importlib.import_module(f"smoe.regression.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'smoe.regression' has no attribute {name!r}")
