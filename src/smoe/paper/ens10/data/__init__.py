"""ENS-10: ensemble forecasts at 48 hours and ERA5 at the same times (section 3.3 of the paper).

xarray and cfgrib are imported when files are opened, torch by the samples only.
"""

from __future__ import annotations

from smoe.data.ens10.store import EnsembleStore
from smoe.data.ens10.variables import TASKS, TaskName
from smoe.data.weather.errors import DataError

__all__ = ["TASKS", "DataError", "EnsembleStore", "TaskName"]
