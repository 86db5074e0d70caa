"""Reads the CMIP archive's MPI-ESM, regridded as for WeatherBench: `<variable>/<variable>_<from>-<to>_5.625deg.nc`.

Levels are in Pa; names and units are those of the archive or already WeatherBench's.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from smoe.errors import DataError
from smoe.gridded._datasets import damage_as_data_error
from smoe_paper.atmosphere.axes import Orientation, find_levels
from smoe_paper.atmosphere.plausible import standard_height
from smoe_paper.atmosphere.time_axis import TimeAxis
from smoe_paper.atmosphere.units import canonical_units, check_units
from smoe_paper.atmosphere.variables import STANDARD_GRAVITY, VARIABLES, Variable
from smoe_paper.weather.data.series import FieldSeries, Piece
from smoe_paper.weather.data.weatherbench import WeatherBenchSource

if TYPE_CHECKING:
    import xarray as xr

PERIOD_FILE = re.compile(r".+_(?P<start>[0-9]{4,12})-(?P<end>[0-9]{4,12})(?:_[0-9.]+deg)?\.nc")

# Global means in the library's units, which show whether values were converted. The factors are at least 10.
_TYPICAL_MEANS = {"tisr": 1.22e6, "tp": 6.8e-4}


class CmipSource(WeatherBenchSource):
    """Reads one resolution's folder of CMIP fields, 6-hourly, in files of several years."""

    kind = "cmip"

    def _variable_of(self, directory: Path) -> Variable | None:
        by_cmip_name = {variable.cmip_name: variable for variable in VARIABLES.values() if variable.cmip_name}
        if directory.name == "total_precipitation":
            return VARIABLES["tp"]
        return by_cmip_name.get(directory.name) or super()._variable_of(directory)

    def _find_pieces(self, directory: Path) -> list[Piece]:
        pieces = []
        for path in directory.iterdir():
            match = PERIOD_FILE.fullmatch(path.name)
            if match:
                pieces.append(Piece(path, range(*_years(match["start"], match["end"], path))))
        return sorted(pieces, key=lambda piece: (piece.years[0], piece.path.name))

    def _make_series(self, variable: Variable, pieces: list[Piece]) -> FieldSeries:
        names = (variable.short_name, variable.cmip_name) if variable.cmip_name else (variable.short_name,)
        return _CmipSeries(variable, pieces, names, self._files, self._expected_grid, self._notify)

    def _constants_file(self) -> Path | None:
        # The archive has no constants on these grids; Rasp and Thuerey use those of ERA5.
        folders = [self.path, *(parent / self.path.name for parent in list(self.path.parents)[1:4])]
        for folder in folders:
            found = self._constants_in(folder)
            if found is not None:
                if folder != self.path:
                    self._notify("constants are WeatherBench's", found)
                return found
        return None


class _CmipSeries(FieldSeries):
    def place_in_time(self, axis: TimeAxis, where: str) -> TimeAxis:
        """Means over some hours carry the time of their middle; they belong to their end."""
        if self.variable.cmip_name not in ("pr", "rsdt"):
            return axis
        if self.variable.cmip_name == "pr" and axis.step not in (0, 360):
            raise DataError(f"{where} has steps of {axis.step} minutes, expected 6-hour means")
        minutes = int((axis.start - np.datetime64("1800-01-01", "m")).astype(np.int64))
        shift = -minutes % 180 if self.variable.cmip_name == "rsdt" else -minutes % 360
        return axis.shifted(shift)

    def unit_factor(self, array: xr.DataArray, orientation: Orientation, piece: Piece, where: str) -> float:
        """Returns the factor of the archive's units, or 1 for values that are already converted.

        Regridding programs rename and convert a variable but keep its attributes. So under WeatherBench's name the
        archive's units, or none, are no evidence, and the size of the values decides.
        """
        variable = self.variable
        units = canonical_units(str(array.attrs.get("units", "")))
        if variable.cmip_factor == 1.0 or not variable.cmip_name:
            check_units(variable, units, where)
            return 1.0
        is_archive_units = units in ("", canonical_units(variable.cmip_units))
        if array.name == variable.cmip_name and is_archive_units:
            return variable.cmip_factor
        if not is_archive_units:
            check_units(variable, units, where)
            return 1.0
        ratio = self._mean_of_first_field(array, orientation, piece) / self._typical_mean(array, where)
        if not ratio > 0.0:
            raise DataError(f"{where} is in {units!r}, expected {variable.units!r}, and its first field does not tell")
        # The two means differ by the factor; the border is their geometric mean.
        is_converted = ratio > variable.cmip_factor**-0.5
        said = f"in {units!r}" if units else "without units"
        meant = variable.units if is_converted else variable.cmip_units
        self._notify(f"{array.name} is {said}: read as {meant!r} by the size of its values", piece.path)
        return 1.0 if is_converted else variable.cmip_factor

    def _mean_of_first_field(self, array: xr.DataArray, orientation: Orientation, piece: Piece) -> float:
        rows = {orientation.latitude, orientation.longitude}
        first = {dim: 0 for dim in array.dims if dim not in rows}
        if self.variable.has_levels:
            axis, levels, _ = find_levels(array, str(piece.path))
            if axis is not None:
                first[axis] = int(np.argmin(levels))
        with damage_as_data_error(piece.path, str(array.name)):
            field = orientation.turn(array.isel(first).transpose(orientation.latitude, orientation.longitude).values)
        weights = np.cos(np.radians(orientation.grid.lat2d()))
        return float(np.nanmean(field * weights) / np.mean(weights)) if np.isfinite(field).any() else float("nan")

    def _typical_mean(self, array: xr.DataArray, where: str) -> float:
        if self.variable.short_name != "z":
            return _TYPICAL_MEANS[self.variable.short_name]
        return STANDARD_GRAVITY * standard_height(min(find_levels(array, where)[1]))


def _years(start: str, end: str, path: Path) -> tuple[int, int]:
    # 185001010600-185501010000 ends with the first hour of an otherwise absent year.
    first, last = int(start[:4]), int(end[:4])
    if end[4:8] == "0101" and last > first:
        last -= 1
    if last < first:
        raise DataError(f"{path}: its name says a period from {start} to {end}, expected the earlier time first")
    return first, last + 1
