"""Fields of one variable in one preprocessed NetCDF file, by date."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from smoe.errors import DataError
from smoe.gridded._datasets import OpenFiles, damage_as_data_error
from smoe_paper.atmosphere.axes import find_levels
from smoe_paper.atmosphere.units import check_units
from smoe_paper.atmosphere.variables import Variable
from smoe_paper.ens10.data.dates import read_dates
from smoe_paper.ens10.data.field_checks import check_fields
from smoe_paper.ens10.data.global_grid import GlobalGrid, find_global_grid, turn

if TYPE_CHECKING:
    import xarray as xr


class DatedFields:
    """Fields `(T, H, W)` of a file. The constructor checks the header, reading checks the values.

    Args:
        files: Opens the file.
        path: Path of the file.
        names: Possible names of the variable; the first one found is used.
        level: Pressure level in hPa; None for a variable without levels.
        physics: Unit and bounds of the values.
        grid: Required grid; None accepts any global grid.
        is_sea_only: Whether values may be missing over land.

    Attributes:
        dates: Dates for which the fields are valid, datetime64[D], `(T,)`.
        grid: Grid of the fields, from north to south.
        notices: Descriptions of corrections.
        attributes: Attributes of the file.
    """

    def __init__(
        self,
        files: OpenFiles,
        path: Path,
        names: tuple[str, ...],
        level: int | None,
        physics: Variable,
        grid: GlobalGrid | None = None,
        *,
        is_sea_only: bool = False,
    ) -> None:
        self._files, self._path, self._physics, self._is_sea_only = files, path, physics, is_sea_only
        dataset = files.get(path)
        name = next((name for name in names if name in dataset.data_vars), None)
        if name is None:
            found = ", ".join(map(str, dataset.data_vars)) or "no variable"
            raise DataError(f"{path} holds {found}, expected {' or '.join(names)}")
        self._name, self.where = name, f"{path}: {name}"
        array = dataset[name]
        self.attributes = dict(dataset.attrs)
        with damage_as_data_error(path, name):
            self.grid = find_global_grid(array, self.where) if grid is None else grid
            self._orientation = self.grid.orientation(array, self.where)
            self._time, self.dates = read_dates(array, self.where)
            self._level_axis, self._level_index = self._find_level(array, level)
        check_units(physics, array.attrs.get("units"), self.where)
        turned = not self._orientation.north_first
        self.notices = ["latitude runs south to north: turned round"] if turned else []

    def _find_level(self, array: xr.DataArray, level: int | None) -> tuple[str | None, int]:
        if level is None:
            return None, 0
        axis, levels, _ = find_levels(array, self.where)
        if level not in levels:
            raise DataError(f"{self.where} has no level {level} hPa; it has {', '.join(map(str, levels))}")
        return axis, levels.index(level)

    def read(self, dates: np.ndarray) -> np.ndarray:
        """Returns the fields at some of `self.dates`, float32, `(T, H, W)`, from north to south.

        Raises:
            DataError: If a date is missing, values are missing or implausible, or the file is damaged.
        """
        index = np.searchsorted(self.dates, dates)
        is_there = self.dates[np.minimum(index, len(self.dates) - 1)] == dates
        if not is_there.all():
            first = dates[int(np.argmin(is_there))]
            raise DataError(
                f"{self.where} lacks {int((~is_there).sum())} of {len(dates)} dates, the first {first}; it has "
                f"{self.dates[0]} to {self.dates[-1]}"
            )
        dims = (self._time, self._orientation.latitude, self._orientation.longitude)
        first, last = int(index.min()), int(index.max()) + 1
        # A block of the file is read at once if the dates are adjacent, as in a preparation.
        where: dict[Hashable, slice | np.ndarray | int] = {
            self._time: slice(first, last) if last - first == len(dates) else index
        }
        if self._level_axis is not None:
            where[self._level_axis] = self._level_index
        with damage_as_data_error(self._path, self._name):
            array = self._files.get(self._path)[self._name].isel(where)
            array = array.squeeze([dim for dim in array.dims if dim not in dims]).transpose(*dims)
            fields = turn(array.values, self._orientation)
        if last - first == len(dates):
            fields = fields[index - first]
        check_fields(fields, self._physics, dates, self.grid.grid, self.where, is_sea_only=self._is_sea_only)
        return fields
