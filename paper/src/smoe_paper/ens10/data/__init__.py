"""ENS-10: ensemble forecasts at 48 hours and ERA5 at the same times (section 3.3 of the paper).

xarray and cfgrib are imported when files are opened, torch by the samples only.
"""

from __future__ import annotations

from smoe.errors import DataError
from smoe_paper.ens10.data.store import EnsembleStore
from smoe_paper.ens10.data.variables import TASKS, TaskName

__all__ = ["TASKS", "DataError", "EnsembleStore", "TaskName"]
