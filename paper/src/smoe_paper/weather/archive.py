"""Folders of WeatherBench as downloaded."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import numpy as np
import xarray as xr

from smoe.errors import DataError
from smoe.gridded import damage_as_data_error, open_netcdf
from smoe_paper.atmosphere.fields import Grid, describe_years, find_field, on_level, real_dates, years_of
from smoe_paper.atmosphere.variables import (
    CONSTANTS,
    HOURLY_PRECIPITATION,
    VARIABLES,
    Variable,
    check_constant_name,
    parse_channel,
)

RESOLUTIONS = ("5.625deg", "2.8125deg", "1.40625deg", "1.4deg")
_CONSTANT_BOUNDS = {"lsm": (-0.01, 1.01), "orography": (-1.0e3, 9.0e3), "slt": (-0.01, 10.0)}
_HOUR = np.timedelta64(1, "h")
LATE_START = 24 * _HOUR
"""Accumulated variables of ERA5 begin seven hours after the others, and their sums later: at most a day is left out."""
_CHUNK = {"time": 512}
_YEAR = re.compile(r"_([0-9]{4})(_[0-9.]+deg)?\.nc$")


class Archive:
    """Fields of one resolution: rows south to north, columns from 0 eastwards, in WeatherBench's units and levels."""

    def __init__(self, root: Path, resolution: str | None = None) -> None:
        self.path = _find_folder(root, resolution)
        self._files: dict[str, dict[int, Path]] = {}
        # Headers are checked once; xarray itself closes files that were not used for long.
        self._opened: dict[Path, tuple[xr.DataArray, Grid]] = {}
        for path in sorted(self.path.glob("*/*.nc")):
            if (match := _YEAR.search(path.name)) is not None:
                self._files.setdefault(path.parent.name, {})[int(match[1])] = path
        if not self.years:
            raise DataError(f"{self.path} holds no weather variable, expected <variable>/<variable>_<year>_*.nc")

    @property
    def years(self) -> list[int]:
        return sorted({year for files in self._files.values() for year in files})

    @functools.cached_property
    def grid(self) -> Grid:
        """The grid of the first file, which all others must have."""
        for variable in (*VARIABLES.values(), HOURLY_PRECIPITATION):
            for path in (path for year in self.years for path in self._paths(variable, year)):
                return self._find(path, variable, None)[1]
        raise DataError(f"{self.path} has none of the folders {', '.join(each.folder for each in VARIABLES.values())}")

    @property
    def constants(self) -> list[str]:
        paths = self._constant_files()
        held = set(open_netcdf(paths[0]).data_vars) if paths else set()
        return [name for name in CONSTANTS if name in held | {"lat2d", "lon2d"}]

    def open(self, year: int, channels: tuple[str, ...]) -> xr.Dataset:
        """The fields of a year by channel, `(time, lat, lon)`, on disk until they are read.

        All have the same times. `tp` is the total of the six hours before each time. Accumulated variables are NaN
        before they begin, at most a day after the others.
        """
        arrays = {channel: self._open(channel, year) for channel in channels}
        times = functools.reduce(np.union1d, (array.time.values for array in arrays.values()))
        for channel, array in arrays.items():
            missing = np.setdiff1d(times, array.time.values)
            is_late = VARIABLES[parse_channel(channel).variable].is_accumulated and year - 1 not in self.years
            if len(missing) and not (is_late and missing[-1] < times[0] + LATE_START):
                raise DataError(
                    f"{channel} of {year} in {self.path} lacks {len(missing)} of {len(times)} times that others have, "
                    f"such as {missing[-1]}: add the missing files"
                )
            arrays[channel] = array.chunk(_CHUNK).reindex(time=times) if len(missing) else array
        return xr.Dataset(arrays, attrs={"path": str(self.path)})

    def read_constant(self, name: str) -> np.ndarray:
        """A field without time, float32, `(H, W)`: `lsm` in [0, 1], `orography` in m."""
        check_constant_name(name)
        if name in ("lat2d", "lon2d"):
            axes = (np.asarray(axis, np.float32) for axis in (self.grid.latitude, self.grid.longitude))
            return np.meshgrid(*axes, indexing="ij")[name == "lon2d"]
        paths = self._constant_files()
        if not paths:
            raise DataError(f"{self.path} has no constants/constants_*.nc; download `constants` of WeatherBench")
        without_units = Variable(name, "", "", _CONSTANT_BOUNDS[name])
        with damage_as_data_error(paths[0], name):
            dataset = open_netcdf(paths[0])
            dataset[name].attrs.pop("units", None)
            field = find_field(dataset, paths[0], [name], without_units, self.grid, dims=())[0].values
        low, high = _CONSTANT_BOUNDS[name]
        if not (np.isfinite(field).all() and field.min() >= low and field.max() <= high):
            raise DataError(
                f"{paths[0]}: {name} has missing values or values from {np.nanmin(field):g} to {np.nanmax(field):g}, "
                f"expected all between {low:g} and {high:g}"
            )
        return field.astype(np.float32)

    def _constant_files(self) -> list[Path]:
        return sorted((self.path / "constants").glob("constants*.nc"))

    def _paths(self, variable: Variable, year: int) -> list[Path]:
        # geopotential_500 and temperature_850 are copies of one level.
        pattern = re.compile(rf"{variable.folder}(_[0-9]+)?")
        return [files[year] for name, files in self._files.items() if pattern.fullmatch(name) and year in files]

    def _open(self, channel: str, year: int) -> xr.DataArray:
        parsed = parse_channel(channel)
        variable = VARIABLES[parsed.variable]
        paths = self._paths(variable, year)
        if channel == "tp" and not paths and self._paths(HOURLY_PRECIPITATION, year):
            return self._sum_precipitation(year)
        arrays = [self._find(path, variable, self.grid)[0] for path in paths]
        found = [array for array in arrays if parsed.level is None or parsed.level in array.level]
        if not arrays:
            held = describe_years([each for each in self.years if self._paths(variable, each)])
            raise DataError(f"{self.path} has no {channel} of {year}; {variable.folder} has the years {held}")
        return on_level((found or arrays)[0], parsed.level, str(paths[0])).drop_vars("level", errors="ignore")

    def _sum_precipitation(self, year: int) -> xr.DataArray:
        """Totals of six hours from those of one, NaN where one of the six is not known."""
        # The first hours of a year need the last ones of the year before.
        paths = [path for each in (year - 1, year) for path in self._paths(HOURLY_PRECIPITATION, each)]
        arrays = [self._find(path, HOURLY_PRECIPITATION, self.grid)[0].chunk(_CHUNK) for path in paths]
        times = arrays[-1].time.values
        hours = xr.concat([*(array.isel(time=slice(-5, None)) for array in arrays[:-1]), arrays[-1]], "time")
        hours = hours.reindex(time=np.arange(times[0] - 5 * _HOUR, times[-1] + _HOUR, _HOUR)).astype(np.float64)
        totals = sum(hours.shift(time=number) for number in range(6))
        assert isinstance(totals, xr.DataArray)
        return totals.sel(time=times).astype(np.float32)

    def _find(self, path: Path, variable: Variable, grid: Grid | None) -> tuple[xr.DataArray, Grid]:
        if path in self._opened:
            return self._opened[path]
        with damage_as_data_error(path):
            dataset = open_netcdf(path)
        array, grid = find_field(dataset, path, [variable.short_name], variable, grid)
        times = real_dates(array.time.values, str(path))
        odd = (np.diff(times) != np.diff(times)[:1]) | (times[1:].astype("datetime64[h]") != times[1:])
        if odd.any():
            place = int(np.argmax(odd))
            raise DataError(
                f"{path}: {times[place + 1]} comes after {times[place]}, expected steps of {np.diff(times)[0]}: "
                "download it again"
            )
        if set(years_of(times)) != {int(found[1]) for found in [_YEAR.search(path.name)] if found}:
            raise DataError(f"{path} holds times from {times[0]} to {times[-1]}, which its name does not say")
        self._opened[path] = array.assign_coords(time=times.astype("datetime64[ns]")), grid
        return self._opened[path]


def _find_folder(path: Path, resolution: str | None) -> Path:
    if not path.is_dir():
        raise DataError(f"{path} is not a folder; expected one that holds a folder for each variable")
    names = RESOLUTIONS if resolution is None else RESOLUTIONS[2:] if resolution in RESOLUTIONS[2:] else (resolution,)
    if path.name in names:
        return path
    folders = [path / name for name in names if (path / name).is_dir()]
    if len(folders) > 1:
        raise DataError(f"{path} holds the resolutions {', '.join(each.name for each in folders)}; choose one")
    if not folders and (resolution or not any(path.glob("*/*.nc"))):
        held = ", ".join(sorted(each.name for each in path.iterdir())[:8]) or "nothing"
        raise DataError(f"{path} holds {held}, expected a folder {resolution or ' or '.join(RESOLUTIONS)}")
    return folders[0] if folders else path
