"""Folders of WeatherBench as downloaded, and of CMIP fields in the same layout."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from smoe.errors import DataError
from smoe_paper.atmosphere.fields import (
    GRIDS,
    FileVariable,
    Grid,
    OpenFiles,
    describe_years,
    find_variable,
    read_times,
    years_of,
)
from smoe_paper.atmosphere.variables import (
    CONSTANTS,
    HOURLY_PRECIPITATION,
    VARIABLES,
    Channel,
    Variable,
    canonical_units,
    check_constant_name,
    check_plausible,
    check_units,
    parse_channel,
)

_CONSTANT_BOUNDS = {"lsm": (-0.01, 1.01), "orography": (-1.0e3, 9.0e3), "slt": (-0.01, 10.0)}
_HOUR = np.timedelta64(1, "h")
LATE_START = 24 * _HOUR
"""Accumulated variables of ERA5 begin seven hours after the others, and their sums later: at most a day is left out."""

# temperature_1979_5.625deg.nc, geopotential_500hPa_1979_5.625deg.nc, and temperature_185001010600-185501010000_...nc.
_FILE = re.compile(r".+?_(?P<first>[0-9]{4})(?P<rest>[0-9]*-(?P<last>[0-9]{4})(?P<end>[0-9]*))?(_[0-9.]+deg)?\.nc")


_Found = TypeVar("_Found")


@dataclass(frozen=True)
class _Header:
    variable: FileVariable
    time_axis: str
    times: np.ndarray
    factor: float


class _Series:
    """The files of one variable, or of one of its levels."""

    def __init__(self, variable: Variable, files: dict[Path, range], opened: OpenFiles) -> None:
        self.variable, self.files, self._opened = variable, files, opened
        self.grid: Grid | None = None
        self._headers: dict[Path, _Header] = {}

    @property
    def years(self) -> list[int]:
        return sorted({year for years in self.files.values() for year in years})

    @property
    def levels(self) -> tuple[int, ...]:
        return self.header(next(iter(self.files))).variable.levels

    def header(self, path: Path) -> _Header:
        """Opens and checks a file once."""
        if path not in self._headers:
            dataset, variable = self._opened[path], self.variable
            names = [name for name in (variable.short_name, variable.cmip_name) if name]
            found = find_variable(dataset, path, names, self.grid, has_levels=variable.has_levels)
            array, where = dataset[found.name], f"{path}: {found.name}"
            time_axis, times = read_times(array, where)
            # One time of the next year is usual in the CMIP archive, whose files end with an hour 0.
            years = years_of(times[[0, -1]] - np.timedelta64(1, "D") * np.array([0, 1]))
            if years[0] < self.files[path][0] or years[1] > self.files[path][-1]:
                raise DataError(f"{path} holds times from {times[0]} to {times[-1]}, which its name does not say")
            units = str(array.attrs.get("units", ""))
            # CMIP holds heights in m; Rasp and Thuerey multiply by 9.807.
            is_height = variable.short_name == "z" and canonical_units(units) == "m"
            if not is_height:
                check_units(variable, units, where)
            self._headers[path] = _Header(found, time_axis, times, 9.807 if is_height else 1.0)
        return self._headers[path]

    def headers(self, first_year: int, last_year: int) -> list[_Header]:
        """Returns the headers of the files that may hold times of these years."""
        return [self.header(p) for p, years in self.files.items() if years[0] <= last_year and years[-1] >= first_year]

    def times(self, year: int) -> np.ndarray:
        # The first time of a year may be the last one of the file before.
        parts = [header.times[years_of(header.times) == year] for header in self.headers(year - 1, year)]
        return np.unique(np.concatenate(parts)) if parts else np.empty(0, "datetime64[m]")

    def read(self, level: int | None, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns fields at ascending times, `(T, H, W)`, NaN where no file has them, and a mask of those found."""
        assert self.grid is not None
        first, last = (int(year) for year in years_of(times[[0, -1]]))
        found = np.zeros(len(times), dtype=bool)
        fields = np.full((len(times), *self.grid.shape), np.nan, dtype=np.float32)
        for header in self.headers(first - 1, last):
            is_here = np.isin(times, header.times)
            if not is_here.any():
                continue
            index = np.searchsorted(header.times, times[is_here])
            # A slice reads one block of the file; an index array would read step by step.
            stride = int(index[1] - index[0]) if len(index) > 1 else 1
            block = slice(int(index[0]), int(index[-1]) + 1, stride)
            where = block if len(range(header.times.size)[block]) == len(index) else index
            variable = header.variable
            part = variable.read(self._opened[variable.path], header.time_axis, {header.time_axis: where}, level)
            fields[is_here] = part * np.float32(header.factor)
            found |= is_here
        return fields, found


class Archive:
    """Fields of one resolution: rows south to north, columns from 0 eastwards, in WeatherBench's units and levels."""

    def __init__(self, path: Path, resolution: str | None = None) -> None:
        self.path = _find_folder(path, resolution)
        self._files = OpenFiles()
        self._series: dict[str, list[_Series]] = {}
        self._hourly: _Series | None = None
        by_folder = {variable.folder: variable for variable in (*VARIABLES.values(), HOURLY_PRECIPITATION)}
        by_folder |= {variable.cmip_name: variable for variable in VARIABLES.values() if variable.cmip_name}
        for folder in sorted(each for each in self.path.iterdir() if each.is_dir()):
            # geopotential_500 and temperature_850 are copies of one level.
            variable = by_folder.get(folder.name) or by_folder.get(re.sub(r"_[0-9]+$", "", folder.name))
            files = {} if variable is None else _find_files(folder)
            if variable is HOURLY_PRECIPITATION and files:
                self._hourly = _Series(HOURLY_PRECIPITATION, files, self._files)
            elif variable is not None and files:
                self._series.setdefault(variable.short_name, []).append(_Series(variable, files, self._files))
        everything = self.series()
        if not everything:
            raise DataError(f"{self.path} holds no weather variable, expected <variable>/<variable>_<year>_*.nc")
        _, header = _first_without_error(
            (series, lambda s=series, p=path: s.header(p)) for series in everything for path in series.files
        )
        self.grid = header.variable.grid
        for series in everything:
            series.grid = self.grid
        steps = np.diff(header.times)
        if not len(steps) or steps[0] not in (_HOUR, 6 * _HOUR):
            raise DataError(f"{header.variable.path} has times that are not 1 h or 6 h apart")
        self.step_hours = int(steps[0] / _HOUR)

    def series(self) -> list[_Series]:
        """Returns the series of all variables, those that may start late at the end."""
        several = [each for name in VARIABLES for each in self._series.get(name, [])]
        several += [] if self._hourly is None else [self._hourly]
        return sorted(several, key=lambda series: series.variable.is_accumulated)

    @property
    def years(self) -> list[int]:
        return sorted({year for series in self.series() for year in series.years})

    @property
    def channels(self) -> list[str]:
        names: list[str] = []
        for name, variable in VARIABLES.items():
            several = self._series.get(name, [])
            levels = sorted({level for series in several for level in series.levels}) if variable.has_levels else [None]
            has_any = several or (name == "tp" and self._hourly is not None)
            names += [str(Channel(name, level)) for level in levels] if has_any else []
        return names

    @property
    def constants(self) -> list[str]:
        held = () if self._constants_file() is None else self._files[self._constants_path()].data_vars
        return [name for name in CONSTANTS if name in ("lat2d", "lon2d") or name in held]

    def times(self, year: int) -> np.ndarray:
        """Returns the times of a year, datetime64[h]: regular, possibly incomplete."""
        several = [series for series in self.series() if year in series.years]
        if not several:
            raise DataError(f"{self.path} has no year {year}; it has {describe_years(self.years)}")
        # A damaged file affects only its readers.
        series, times = _first_without_error((series, lambda s=series: s.times(year)) for series in several)
        hours = times.astype("datetime64[h]")
        odd = (hours != times)[1:] | (np.diff(hours) != self.step_hours * _HOUR)
        if odd.any():
            place = int(np.argmax(odd))
            raise DataError(
                f"{series.variable.folder} {year} in {self.path}: {times[place + 1]} comes after {times[place]}, "
                f"expected steps of {self.step_hours} h"
            )
        return hours

    def check(self, channels: Iterable[str], year: int) -> None:
        """Opens every file needed and compares levels and times; reads only headers."""
        for channel in channels:
            series, level = self._find(channel, year)
            for header in series.headers(year, year):
                header.variable.check_level(level)
            times = self.times(year)
            self._check_found(series, times, np.isin(times, series.times(year)))

    def read(self, channel: str, times: np.ndarray) -> np.ndarray:
        """Returns fields of a channel at ascending times, float32, physical units, `(T, H, W)`.

        NaNs of the files stay. `tp` is the total of the six hours before each time; accumulated variables are NaN
        before they begin, at most a day after the others.
        """
        series, level = self._find(channel, int(years_of(times)[0]))
        wanted = times
        if series is self._hourly:
            wanted = np.unique(times[:, None] - np.arange(6) * _HOUR)
        fields, found = series.read(level, wanted)
        self._check_found(series, wanted, found)
        where = f"{channel} in {self.path}"
        check_plausible(fields, series.variable, level, wanted, where)
        if series is self._hourly:
            totals = sum(fields[np.searchsorted(wanted, times - hour * _HOUR)].astype(np.float64) for hour in range(6))
            fields = np.asarray(totals, np.float32)
        return fields

    def read_constant(self, name: str) -> np.ndarray:
        """Returns a field without time, float32, `(H, W)`: `lsm` in [0, 1], `orography` in m."""
        check_constant_name(name)
        if name in ("lat2d", "lon2d"):
            return self.grid.lat2d() if name == "lat2d" else self.grid.lon2d()
        path = self._constants_path()
        variable = find_variable(self._files[path], path, [name], self.grid, has_levels=False)
        field = variable.read(self._files[path], "", {})
        low, high = _CONSTANT_BOUNDS[name]
        if not (np.isfinite(field).all() and field.min() >= low and field.max() <= high):
            raise DataError(
                f"{path}: {name} has missing values or values from {np.nanmin(field):g} to {np.nanmax(field):g}, "
                f"expected all between {low:g} and {high:g}"
            )
        return field

    def _constants_file(self) -> Path | None:
        return next(iter(sorted((self.path / "constants").glob("constants*.nc"))), None)

    def _constants_path(self) -> Path:
        path = self._constants_file()
        if path is None:
            raise DataError(f"{self.path} has no constants/constants_*.nc; download `constants` of WeatherBench")
        return path

    def _find(self, channel: str, year: int) -> tuple[_Series, int | None]:
        parsed = parse_channel(channel)
        several = list(self._series.get(parsed.variable, []))
        if parsed.variable == "tp" and self._hourly is not None and not several and self.step_hours == 1:
            several = [self._hourly]
        fitting = [series for series in several if parsed.level is None or parsed.level in series.levels]
        if not fitting:
            raise DataError(f"{self.path} has no {channel}; it has {', '.join(self.channels)}")
        for series in fitting:
            if year in series.years:
                return series, parsed.level
        folder = fitting[0].variable.folder
        raise DataError(f"{self.path}: {folder} has no year {year}; it has {describe_years(fitting[0].years)}")

    def _check_found(self, series: _Series, times: np.ndarray, found: np.ndarray) -> None:
        missing = times[~found]
        late = self.times(self.years[0])[0] + LATE_START if series.variable.is_accumulated else times[0]
        if (missing >= late).any():
            raise DataError(
                f"{series.variable.folder} in {self.path} lacks {len(missing)} of {len(times)} times that others have, "
                f"such as {missing[-1]}"
            )


def _first_without_error(attempts: Iterable[tuple[_Series, Callable[[], _Found]]]) -> tuple[_Series, _Found]:
    errors: list[DataError] = []
    for series, attempt in attempts:
        try:
            return series, attempt()
        except DataError as error:
            errors.append(error)
    raise errors[0]


def _find_files(folder: Path) -> dict[Path, range]:
    files: dict[Path, range] = {}
    for path in sorted(folder.iterdir()):
        match = _FILE.fullmatch(path.name)
        if match:
            first, last = int(match["first"]), int(match["last"] or match["first"])
            # 185001010600-185501010000 ends with the first hour of an otherwise absent year.
            last -= bool(match["last"] and match["end"][:4] == "0101" and last > first)
            if not match["last"] and range(first, last + 1) in files.values():
                raise DataError(f"{folder} has two files of {first}; keep one")
            files[path] = range(first, last + 1)
    return files


def _find_folder(path: Path, resolution: str | None) -> Path:
    if not path.is_dir():
        raise DataError(f"{path} is not a folder; expected one that holds a folder for each variable")
    names = ["1.40625deg", "1.4deg"] if resolution in ("1.40625deg", "1.4deg") else [resolution or ""]
    known = [*GRIDS, "1.4deg"]
    if path.name in known and (resolution is None or path.name in names):
        return path
    folders = [path / name for name in (names if resolution else known) if (path / name).is_dir()]
    if len(folders) > 1:
        raise DataError(f"{path} holds the resolutions {', '.join(each.name for each in folders)}; choose one")
    if not folders and (resolution or not any(path.glob("*/*.nc"))):
        held = ", ".join(sorted(each.name for each in path.iterdir())[:8]) or "nothing"
        raise DataError(f"{path} holds {held}; expected a folder {resolution or ', '.join(GRIDS)}")
    return folders[0] if folders else path
