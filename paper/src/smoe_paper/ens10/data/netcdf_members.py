"""Reads members in `ensemble/output.pl.<date>.nc`: dimensions number, (level,) latitude, longitude; cfgrib's names."""

from __future__ import annotations

import numpy as np

from smoe.errors import DataError
from smoe.gridded._datasets import damage_as_data_error, open_netcdf
from smoe_paper.atmosphere.axes import find_levels
from smoe_paper.atmosphere.time_axis import as_minutes
from smoe_paper.atmosphere.units import check_units
from smoe_paper.ens10.data.dates import LEAD
from smoe_paper.ens10.data.global_grid import GlobalGrid, find_global_grid, turn
from smoe_paper.ens10.data.member_files import MemberFile, OpenMembers, check_numbers
from smoe_paper.ens10.data.variables import EnsembleTask, EnsembleVariable


class NetcdfMembers(OpenMembers):
    """Reads the members of one date. The file is small and is read whole."""

    def __init__(self, file: MemberFile, task: EnsembleTask) -> None:
        self._fields: dict[str, np.ndarray] = {}
        grid: GlobalGrid | None = None
        with damage_as_data_error(file.path), open_netcdf(file.path) as dataset:
            self.starts = _read_start(dataset["time"].values, dataset["valid_time"].values, str(file.path))
            for variable in task.variables:
                where = f"{file.path}: {variable.grib_name}"
                if variable.grib_name not in dataset.data_vars:
                    raise DataError(
                        f"{file.path} has no {variable.grib_name}; it has {', '.join(map(str, dataset.data_vars))}"
                    )
                array = dataset[variable.grib_name]
                check_units(variable.physics, array.attrs.get("units"), where)
                grid = find_global_grid(array, where) if grid is None else grid
                orientation = grid.orientation(array, where)
                if task.level is not None:
                    axis, levels, _ = find_levels(array, where)
                    if task.level not in levels:
                        raise DataError(f"{where} has no level {task.level} hPa; it has {', '.join(map(str, levels))}")
                    array = array if axis is None else array.isel({axis: levels.index(task.level)})
                numbers = [int(number) for number in np.atleast_1d(array["number"].values)]
                check_numbers(numbers, where)
                array = array.transpose("number", orientation.latitude, orientation.longitude)
                self._fields[variable.name] = turn(array.values, orientation)[np.argsort(numbers)]
        assert grid is not None
        self.grid = grid.grid

    def read(self, variable: EnsembleVariable, start: np.datetime64) -> np.ndarray:  # noqa: ARG002 - of one start
        """Returns all members of a variable."""
        return self._fields[variable.name]


def _read_start(start: np.ndarray, valid: np.ndarray, where: str) -> np.ndarray:
    starts, valids = as_minutes(start, where), as_minutes(valid, where)
    if len(starts) != 1 or (valids - starts != LEAD).any():
        raise DataError(
            f"{where} holds forecasts from {starts[0]} for {valids[0]}, expected one start and a lead of 48 h"
        )
    return starts.astype("datetime64[D]")
