"""ENS-10: ensemble forecasts at 48 hours and ERA5 at the same times (section 3.3 of the paper).

xarray and cfgrib are imported when files are opened, torch by the samples only.
"""

from __future__ import annotations

from smoe.errors import DataError
from smoe_paper.ens10.data.variables import TASKS, TaskName
from smoe_paper.ens10.store import EnsembleStore

__all__ = ["TASKS", "DataError", "EnsembleStore", "TaskName"]
