"""Reads forecast files in WeatherBench's layout, from this library or any other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from smoe._integrity import check_netcdf_file, check_zarr_array, check_zarr_coordinates
from smoe.errors import DataError
from smoe.gridded._datasets import damage_as_data_error, import_xarray
from smoe.gridded.grid import Grid
from smoe_paper.atmosphere.axes import LEVEL_NAMES, Orientation, find_levels, find_orientation
from smoe_paper.atmosphere.units import check_units
from smoe_paper.atmosphere.variables import VARIABLES, Variable, parse_channel

if TYPE_CHECKING:
    import xarray as xr

_INIT_NAMES = ("init_time",)
_LEAD_NAMES = ("lead_time", "prediction_timedelta", "step")
# The levels of WeatherBench's own files, which do not record them.
_USUAL_LEVELS = {"z": 500, "t": 850}


@dataclass(frozen=True)
class _Field:
    """Place of a channel in a file: its variable, and its index on the level axis, if there is one."""

    name: str
    orientation: Orientation
    level_axis: str | None = None
    level_number: int = 0


class ForecastFile:
    """Forecasts `(init_time, lead_time, lat, lon)` of a NetCDF or Zarr file.

    The leads may be hours or time differences, the latitudes run either way, the longitudes begin anywhere; a level is
    an axis, a coordinate, the attribute `level`, part of the name (`z_500`), or missing for `z` (500) and `t` (850).

    Args:
        path: File, or folder of a Zarr store.
        channels: Channels to read.
        grid: Required grid of the fields.

    Attributes:
        init_times: Initial times, datetime64[h].
        lead_hours: Lead times in hours.
        channels: Channels of the file.
        missing: Requested channels that are not in the file.
        notices: Corrections and assumptions.

    Raises:
        DataError: If the file cannot be read, has another layout, another grid or other units, or none of the channels.
    """

    def __init__(self, path: Path, channels: Sequence[str], grid: Grid) -> None:
        self.path = path
        self.notices: list[str] = []
        with damage_as_data_error(path):
            self._dataset = _open(path)
        self._init = self._axis(_INIT_NAMES)
        self._lead = self._axis(_LEAD_NAMES)
        self.init_times = self._read_times()
        self.lead_hours = self._read_leads()
        found = {name: self._find(name, grid) for name in channels}
        self._fields = {name: field for name, field in found.items() if field is not None}
        self.channels = tuple(self._fields)
        self.missing = tuple(name for name, field in found.items() if field is None)
        if not self.channels:
            raise DataError(
                f"{path} holds {', '.join(map(str, self._dataset.data_vars)) or 'no variables'}, "
                f"none of the forecasts asked for: {', '.join(channels)}"
            )

    def read(self, channel: str, inits: slice, lead: int) -> np.ndarray:
        """Returns forecasts of some initial times for one lead, south to north, 0 eastwards, float32, `(B, H, W)`."""
        field = self._fields[channel]
        array = self._dataset[field.name].isel({self._init: inits, self._lead: lead})
        if field.level_axis is not None:
            array = array.isel({field.level_axis: field.level_number})
        rows, columns = field.orientation.latitude, field.orientation.longitude
        with damage_as_data_error(self.path, f"{channel} from {self.init_times[inits][0]} on"):
            return field.orientation.turn(array.transpose(self._init, rows, columns).values)

    def close(self) -> None:
        """Closes the file."""
        self._dataset.close()

    def _axis(self, names: tuple[str, ...]) -> str:
        found = [name for name in names if name in self._dataset.dims]
        if len(found) == 1 and found[0] in self._dataset.coords:
            return found[0]
        if len(found) == 1:
            raise DataError(f"{self.path} does not say what its {found[0]} are: the dimension has no coordinate")
        has = ", ".join(f"{name} ({size})" for name, size in self._dataset.sizes.items())
        hint = ""
        if "time" in self._dataset.dims:
            # Files of WeatherBench's own scripts use it for the valid time of direct forecasts, others for the start.
            hint = "; if `time` is the time at which the forecasts start, rename it to init_time"
        raise DataError(
            f"{self.path} has the dimensions {has}, expected (init_time, lead_time, lat, lon): "
            f"there is no {' or '.join(names)}{hint}"
        )

    def _read_times(self) -> np.ndarray:
        values = self._dataset[self._init].values
        if not np.issubdtype(values.dtype, np.datetime64):
            raise DataError(f"{self.path}: {self._init} is of type {values.dtype}, expected times")
        hours = values.astype("datetime64[h]")
        if (np.isnat(values) | (hours != values)).any():
            raise DataError(f"{self.path}: {self._init} holds times that are not full hours, such as {values[0]}")
        if len(hours) == 0 or (np.diff(hours) <= np.timedelta64(0, "h")).any():
            raise DataError(f"{self.path}: {self._init} must ascend, each time once, and hold at least one")
        return hours

    def _read_leads(self) -> tuple[int, ...]:
        values = self._dataset[self._lead].values
        if np.issubdtype(values.dtype, np.timedelta64):
            hours = values / np.timedelta64(1, "h")
        elif np.issubdtype(values.dtype, np.number):
            hours = values.astype(np.float64)
            self.notices.append(f"{self._lead} has no units: read as hours")
        else:
            raise DataError(f"{self.path}: {self._lead} is of type {values.dtype}, expected hours or time differences")
        if not (len(hours) and np.isfinite(hours).all() and (hours == np.rint(hours)).all() and hours.min() >= 0):
            raise DataError(f"{self.path}: {self._lead} must hold full hours from 0 on, got {hours.tolist()[:5]}")
        return tuple(int(value) for value in hours)

    def _find(self, channel: str, grid: Grid) -> _Field | None:
        parsed = parse_channel(channel)
        variable = VARIABLES[parsed.variable]
        names = (channel, variable.short_name, variable.folder, variable.store_name)
        name = next((name for name in names if name in self._dataset.data_vars), None)
        if name is None:
            return None
        if self.path.is_dir():
            check_zarr_array(self.path, name)
        array = self._dataset[name]
        where = f"{name} of {self.path}"
        check_units(variable, array.attrs.get("units"), where)
        orientation = find_orientation(array, grid, where)
        for notice in orientation.notices():
            if notice not in self.notices:
                self.notices.append(notice)
        level_axis, level_number = self._find_level(array, variable, name == channel, parsed.level, where)
        if level_number is None:
            return None
        expected = {self._init, self._lead, orientation.latitude, orientation.longitude, *filter(None, [level_axis])}
        if set(array.dims) != expected:
            raise DataError(f"{where} has the dimensions {array.dims}, expected (init_time, lead_time, lat, lon)")
        return _Field(name, orientation, level_axis, level_number)

    def _find_level(
        self, array: xr.DataArray, variable: Variable, is_named_so: bool, level: int | None, where: str
    ) -> tuple[str | None, int | None]:
        """Returns the name of the level axis, if there is one, and the index of the level; None for another level."""
        if level is None or (is_named_so and not set(LEVEL_NAMES) & set(array.dims)):
            return None, 0
        if any(name in array.coords for name in LEVEL_NAMES):
            axis, levels, _ = find_levels(array, where)
        elif "level" in array.attrs:
            axis, levels = None, (int(array.attrs["level"]),)
        elif variable.short_name in _USUAL_LEVELS:
            axis, levels = None, (_USUAL_LEVELS[variable.short_name],)
            self.notices.append(f"{array.name} does not say its level: supposed to be at {levels[0]} hPa")
        else:
            raise DataError(
                f"{where} does not say its level; give it the attribute level, or the name {array.name}_{level}"
            )
        return (axis, levels.index(level)) if level in levels else (None, None)


def _open(path: Path) -> xr.Dataset:
    xarray = import_xarray()
    if path.is_dir():
        check_zarr_coordinates(path)
        return xarray.open_dataset(path, engine="zarr", chunks=None, consolidated=False, decode_timedelta=True)
    if not path.exists():
        raise DataError(f"there are no forecasts in {path}")
    check_netcdf_file(path)
    return xarray.open_dataset(path, engine="netcdf4", cache=False, decode_timedelta=True)
