"""Files of forecasts: read and written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from smoe.errors import DataError
from smoe.gridded import damage_as_data_error, import_xarray, open_netcdf, with_provenance, write_cf
from smoe_paper.atmosphere.axes import LEVEL_NAMES, Grid, find_levels, find_orientation
from smoe_paper.atmosphere.files import FileVariable, check_zarr_array, open_zarr
from smoe_paper.atmosphere.variables import VARIABLES, Channel, check_units, parse_channel

if TYPE_CHECKING:
    import xarray as xr

# The levels of WeatherBench's own files, which do not record them.
_USUAL_LEVELS = {"z": 500, "t": 850}


class ForecastFile:
    """Forecasts `(init_time, lead_time, lat, lon)` of a NetCDF or Zarr file.

    The leads may be hours or time differences, the latitudes run either way, the longitudes begin anywhere; a level is
    an axis, a coordinate, the attribute `level`, part of the name (`z_500`), or missing for `z` (500) and `t` (850).
    """

    def __init__(self, path: Path, channels: Sequence[str], grid: Grid) -> None:
        self.path = path
        self.notices: list[str] = []
        if not path.exists():
            raise DataError(f"there are no forecasts in {path}")
        with damage_as_data_error(path):
            dataset = open_zarr(path) if path.is_dir() else open_netcdf(path)
            self._dataset = import_xarray().decode_cf(dataset, decode_timedelta=True)
        self._init = self._axis(("init_time",))
        self._lead = self._axis(("lead_time", "prediction_timedelta", "step"))
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
        level = parse_channel(channel).level
        return self._fields[channel].read(self._dataset, self._init, {self._init: inits, self._lead: lead}, level)

    def close(self) -> None:
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

    def _find(self, channel: str, grid: Grid) -> FileVariable | None:
        parsed = parse_channel(channel)
        variable = VARIABLES[parsed.variable]
        names = (channel, variable.short_name, variable.folder, variable.store_name)
        name = next((name for name in names if name in self._dataset.data_vars), None)
        if name is None:
            return None
        if self.path.is_dir():
            check_zarr_array(self.path, name)
        array, where = self._dataset[name], f"{name} of {self.path}"
        check_units(variable, array.attrs.get("units"), where)
        orientation = find_orientation(array, grid, where)
        self.notices += [notice for notice in orientation.notices() if notice not in self.notices]
        level_axis, levels = self._find_levels(array, name == channel, parsed, where)
        if parsed.level is not None and parsed.level not in levels:
            return None
        expected = {self._init, self._lead, orientation.latitude, orientation.longitude, *filter(None, [level_axis])}
        if set(array.dims) != expected:
            raise DataError(f"{where} has the dimensions {array.dims}, expected (init_time, lead_time, lat, lon)")
        return FileVariable(self.path, name, orientation, level_axis, levels)

    def _find_levels(
        self, array: xr.DataArray, is_named_so: bool, channel: Channel, where: str
    ) -> tuple[str | None, tuple[int, ...]]:
        if channel.level is None or (is_named_so and not set(LEVEL_NAMES) & set(array.dims)):
            return None, () if channel.level is None else (channel.level,)
        if any(name in array.coords for name in LEVEL_NAMES):
            return find_levels(array, where)[:2]
        if "level" in array.attrs:
            return None, (int(array.attrs["level"]),)
        if channel.variable in _USUAL_LEVELS:
            level = _USUAL_LEVELS[channel.variable]
            self.notices.append(f"{array.name} does not say its level: supposed to be at {level} hPa")
            return None, (level,)
        raise DataError(
            f"{where} does not say its level; give it the attribute level, or the name {array.name}_{channel.level}"
        )


def write_forecasts(
    path: Path, forecasts: Mapping[str, np.ndarray], init_times: np.ndarray, lead_hours: int, grid: Grid, what: str
) -> None:
    """Writes forecasts of one lead as `(init_time, lead_time, lat, lon)`, whole or not at all."""
    xr = import_xarray()
    coordinates = {
        "init_time": ("init_time", init_times.astype("datetime64[ns]"), {"long_name": "start"}),
        "lead_time": ("lead_time", np.array([lead_hours]), {"units": "hours", "long_name": "time since init_time"}),
        "lat": ("lat", list(grid.latitude), {"units": "degrees_north", "standard_name": "latitude"}),
        "lon": ("lon", list(grid.longitude), {"units": "degrees_east", "standard_name": "longitude"}),
    }
    channels = {name: parse_channel(name) for name in forecasts}
    count = Counter(channel.variable for channel in channels.values())
    arrays = {}
    for name, channel in channels.items():
        fields, variable = forecasts[name], VARIABLES[channel.variable]
        if not np.isfinite(fields).all():
            raise DataError(f"the forecast of {name} holds {np.count_nonzero(~np.isfinite(fields))} values not finite")
        attributes = {"units": variable.units, "long_name": variable.folder}
        if channel.level is not None:
            attributes |= {"level": channel.level, "level_units": "hPa"}
        short = channel.variable if count[channel.variable] == 1 else name
        arrays[short] = (tuple(coordinates), fields[:, None].astype(np.float32), attributes)
    dataset = xr.Dataset(arrays, coordinates)
    dataset["init_time"].encoding = {"units": "hours since 1970-01-01", "dtype": "int64"}
    write_cf(with_provenance(dataset, what), path)
