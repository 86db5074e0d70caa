"""Archives of weather fields as downloaded: WeatherBench, WeatherBench 2 and CMIP."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from smoe.errors import DataError
from smoe.gridded import damage_as_data_error, open_netcdf
from smoe_paper.atmosphere.axes import GRIDS, Grid, find_orientation, read_time_axis
from smoe_paper.atmosphere.files import OpenFiles, check_zarr_array, open_zarr
from smoe_paper.atmosphere.store import describe_years
from smoe_paper.atmosphere.variables import (
    CONSTANTS,
    HOURLY_PRECIPITATION,
    STANDARD_GRAVITY,
    VARIABLES,
    Channel,
    Variable,
    check_constant_name,
    check_plausible,
    parse_channel,
)
from smoe_paper.weather.series import CmipSeries, FieldSeries, Header, Piece

if TYPE_CHECKING:
    import xarray as xr

_COORDINATES = ("lat2d", "lon2d")
_CONSTANT_BOUNDS = {"lsm": (-0.01, 1.01), "orography": (-1.0e3, 9.0e3), "slt": (-0.01, 10.0)}

# Accumulated variables of ERA5 begin seven hours after the others. Training leaves out one day at the start.
LATE_START = np.timedelta64(24, "h")


class WeatherSource:
    """A source of fields: rows south to north, columns from 0 eastwards, WeatherBench's units and levels.

    An archive's own class finds the files and calls `_set_series`.
    """

    kind: str

    def __init__(self, path: Path, files: OpenFiles):
        self.path = path
        self.notices: list[str] = []
        self._files = files
        self._series: dict[str, list[FieldSeries]] = {}
        self._hourly_precipitation: FieldSeries | None = None

    def _set_series(self, series: dict[str, list[FieldSeries]], hourly_precipitation: FieldSeries | None) -> None:
        # By short name; several series of one variable hold other levels, and the first one with a level is used.
        self._series = {name: series[name] for name in VARIABLES if name in series}
        self._hourly_precipitation = hourly_precipitation
        everything = self.all_series()
        if not everything:
            raise DataError(f"{self.path} holds no weather variable")
        path, header = self._first_header()
        self.grid: Grid = header.variable.orientation.grid
        for series_of_any in everything:
            series_of_any.grid = self.grid
        if header.time.step not in (60, 360):
            found = f"steps of {header.time.step / 60:g} h" if header.time.step else "a single time"
            raise DataError(f"{path} has {found}, expected times 1 h or 6 h apart")
        self.step_hours = header.time.step // 60

    def all_series(self) -> list[FieldSeries]:
        extra = [] if self._hourly_precipitation is None else [self._hourly_precipitation]
        return [each for several in self._series.values() for each in several] + extra

    def _in_order(self) -> list[FieldSeries]:
        # Accumulated variables may start late, so another variable gives the times if there is one.
        return sorted(self.all_series(), key=lambda series: series.variable.is_accumulated)

    def _first_header(self) -> tuple[Path, Header]:
        # A damaged file affects only its readers: the next file gives grid and step as well.
        errors = []
        for series in self._in_order():
            for piece in series.pieces:
                try:
                    return piece.path, series.header(piece)
                except DataError as error:
                    errors.append(error)
        raise errors[0]

    def _reference_of(self, year: int) -> FieldSeries:
        ordered = self._in_order()
        of_year = [series for series in ordered if year in series.years] or ordered[:1]
        return next((series for series in of_year if series.can_be_opened(year - 1, year)), of_year[0])

    def _notify(self, notice: str, path: Path) -> None:
        if not any(said.startswith(notice) for said in self.notices):
            self.notices.append(f"{notice} (first seen in {path.name})")

    @property
    def years(self) -> tuple[int, ...]:
        return tuple(sorted({year for series in self.all_series() for year in series.years}))

    @property
    def channels(self) -> tuple[str, ...]:
        names: list[str] = []
        for short_name, variable in VARIABLES.items():
            several = self._series.get(short_name, [])
            if variable.has_levels:
                levels = sorted({level for series in several for level in series.levels})
                names += [str(Channel(short_name, level)) for level in levels]
            elif several or (short_name == "tp" and self._hourly_precipitation is not None and self.step_hours == 1):
                names.append(short_name)
        return tuple(names)

    def times(self, year: int) -> np.ndarray:
        """Returns the times of a year, datetime64[h], `(T,)`: regular, possibly incomplete."""
        reference = self._reference_of(year)
        if year not in reference.years:
            raise self._missing_year(reference, year)
        times = reference.times(year)
        where = f"{reference.variable.folder} {year} in {self.path}"
        if times.size == 0:
            raise DataError(f"{where} holds no time")
        hours = times.astype("datetime64[h]")
        if (hours != times).any():
            raise DataError(f"{where} has times off the hour, such as {times[np.argmax(hours != times)]}")
        odd = np.diff(hours).astype(np.int64) != self.step_hours
        if odd.any():
            place = int(np.argmax(odd))
            raise DataError(
                f"{where}: {hours[place + 1]} comes after {hours[place]}, expected steps of {self.step_hours} h"
            )
        return hours

    def read(self, channel: str, year: int) -> np.ndarray:
        """Returns the fields of a channel at `times(year)`, float32, physical units, `(T, H, W)`.

        NaNs of the files stay. `tp` is the total of the six hours before each time. It is NaN where the archive does
        not reach back six hours, and before the first hour of accumulated variables.
        """
        series, level = self._find(channel, year)
        times = self.times(year)
        where = f"{series.variable.folder} {year}" + ("" if level is None else f" at {level} hPa")
        if series is self._hourly_precipitation:
            fields = self._six_hour_totals(series, times, year)
            variable = VARIABLES["tp"]
        else:
            fields, found = series.read(level, times)
            self._check_found(series, year, times, found)
            variable = series.variable
        check_plausible(fields, variable, level, times, f"{where} in {self.path}")
        return fields

    def check(self, channels: Iterable[str], years: Iterable[int]) -> None:
        """Opens every file needed and compares levels and times; reads only headers."""
        channels = list(channels)
        for year in years:
            times = self.times(year)
            for channel in channels:
                series, level = self._find(channel, year)
                series.check_level(year, level)
                self._check_found(series, year, times, np.isin(times.astype("datetime64[m]"), series.times(year)))

    def close(self) -> None:
        self._files.close()

    def __enter__(self) -> WeatherSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def constant_names(self) -> tuple[str, ...]:
        """Every available constant; the coordinates are always available."""
        return tuple(name for name in CONSTANTS if name in _COORDINATES or self._has_constant(name))

    def read_constant(self, name: str) -> np.ndarray:
        """Returns a field without time, float32, `(H, W)`: `lsm` in [0, 1], `orography` in m."""
        check_constant_name(name)
        if name in _COORDINATES:
            return self.grid.lat2d() if name == "lat2d" else self.grid.lon2d()
        field, where = self._read_constant(name)
        if not np.isfinite(field).all():
            raise DataError(f"{where} has {int((~np.isfinite(field)).sum())} of {field.size} values missing")
        low, high = _CONSTANT_BOUNDS[name]
        if field.min() < low or field.max() > high:
            raise DataError(
                f"{where} has values from {field.min():g} to {field.max():g}, which cannot be {name} "
                f"(between {low:g} and {high:g}): the unit is another or the file is damaged"
            )
        return field

    def _has_constant(self, name: str) -> bool:
        raise NotImplementedError

    def _read_constant(self, name: str) -> tuple[np.ndarray, str]:
        raise NotImplementedError

    def _find(self, channel: str, year: int) -> tuple[FieldSeries, int | None]:
        parsed = parse_channel(channel)
        several = list(self._series.get(parsed.variable, []))
        if not several and parsed.variable == "tp" and self._hourly_precipitation is not None:
            if self.step_hours != 1:
                raise DataError(
                    f"{self.path} has hourly totals in {self._hourly_precipitation.variable.folder} at times "
                    f"{self.step_hours} h apart, from which 6-hour totals cannot be made; expected "
                    f"{VARIABLES['tp'].folder} or hourly times"
                )
            several = [self._hourly_precipitation]
        if not several:
            raise DataError(f"{self.path} has no {self._expected_name(VARIABLES[parsed.variable])}, needed for "
                            f"{channel}; it has {', '.join(self._found_names())}")  # fmt: skip
        fitting = [series for series in several if parsed.level is None or parsed.level in series.levels]
        if not fitting:
            levels = sorted({level for series in several for level in series.levels})
            raise DataError(
                f"{self.path}: {several[0].variable.folder} has no level {parsed.level} hPa; it has "
                f"{', '.join(map(str, levels))}"
            )
        series = next((series for series in fitting if year in series.years), None)
        if series is None:
            raise self._missing_year(fitting[0], year)
        return series, parsed.level

    def _six_hour_totals(self, series: FieldSeries, times: np.ndarray, year: int) -> np.ndarray:
        # Hours before a year are in the file of the year before, if there is one.
        before = times[0] - np.arange(5, 0, -1) * np.timedelta64(1, "h")
        hourly, found = series.read(None, np.concatenate([before, times]))
        self._check_found(series, year, times, found[5:])
        check_plausible(
            hourly, series.variable, None, np.concatenate([before, times]), f"{series.variable.folder} {year}"
        )
        totals = np.zeros(hourly[5:].shape, dtype=np.float64)
        for hour in range(6):
            totals += hourly[hour : hour + len(times)]
        return totals.astype(np.float32)

    def _check_found(self, series: FieldSeries, year: int, times: np.ndarray, found: np.ndarray) -> None:
        if found.all():
            return
        missing = times[~found]
        is_start = year == self.years[0] and bool((missing < times[0] + LATE_START).all()) and bool(found[-1])
        if series.variable.is_accumulated and is_start:
            self._notify(f"{series.variable.folder} begins {len(missing)} times late: NaN there", series.pieces[0].path)
            return
        raise DataError(
            f"{series.variable.folder} {year} in {self.path} lacks {len(missing)} of {len(times)} times, the first "
            f"{missing[0]}; {self._reference_of(year).variable.folder} has them"
        )

    def _missing_year(self, series: FieldSeries, year: int) -> DataError:
        return DataError(
            f"{self.path}: {series.variable.folder} has no year {year}; it has {describe_years(series.years)}"
        )

    def _found_names(self) -> list[str]:
        return [series.variable.folder for series in self.all_series()]

    def _expected_name(self, variable: Variable) -> str:
        return variable.folder

    def _read_constant_file(self, path: Path, name: str, where: str) -> np.ndarray:
        array = self._files.get(path)[name]
        orientation = find_orientation(array, self.grid, where)
        for notice in orientation.notices():
            self._notify(notice, path)
        extra = [dim for dim in array.dims if dim not in (orientation.latitude, orientation.longitude)]
        if any(array.sizes[dim] > 1 for dim in extra):
            raise DataError(f"{where} has the dimensions {tuple(array.dims)}, expected latitude and longitude only")
        with damage_as_data_error(path, name):
            array = array.isel(dict.fromkeys(extra, 0)).transpose(orientation.latitude, orientation.longitude)
            return orientation.turn(array.values)


YEAR_FILE = re.compile(r"(?P<stem>.+?)(?:hPa)?_(?P<year>[0-9]{4})_[0-9.]+deg\.nc")


class WeatherBenchSource(WeatherSource):
    """Reads one resolution's folder of WeatherBench."""

    kind = "weatherbench"

    def __init__(self, folder: Path, resolution: str | None):
        super().__init__(folder, OpenFiles(open_netcdf))
        self._expected_grid = None if resolution is None else GRIDS[resolution]
        series: dict[str, list[FieldSeries]] = {}
        hourly_precipitation = None
        for directory in sorted(each for each in folder.iterdir() if each.is_dir()):
            variable = self._variable_of(directory)
            pieces = [] if variable is None else self._find_pieces(directory)
            if variable is None:
                continue
            if not pieces:
                self._notice_zip_files(directory)
            elif variable is HOURLY_PRECIPITATION:
                hourly_precipitation = self._make_series(variable, pieces)
            else:
                series.setdefault(variable.short_name, []).append(self._make_series(variable, pieces))
        self._set_series(series, hourly_precipitation)

    def _variable_of(self, directory: Path) -> Variable | None:
        by_folder = {variable.folder: variable for variable in (*VARIABLES.values(), HOURLY_PRECIPITATION)}
        # geopotential_500 and temperature_850 are copies of one level.
        single_level = re.fullmatch(r"(.+)_[0-9]+", directory.name)
        if directory.name not in by_folder and single_level:
            variable = by_folder.get(single_level[1])
            return variable if variable is not None and variable.has_levels else None
        return by_folder.get(directory.name)

    def _make_series(self, variable: Variable, pieces: list[Piece]) -> FieldSeries:
        return FieldSeries(variable, pieces, (variable.short_name,), self._files, self._expected_grid, self._notify)

    def _find_pieces(self, directory: Path) -> list[Piece]:
        pieces = []
        for path in directory.iterdir():
            match = YEAR_FILE.fullmatch(path.name)
            if match and match["stem"] == directory.name:
                pieces.append(Piece(path, range(int(match["year"]), int(match["year"]) + 1)))
        pieces.sort(key=lambda piece: piece.years[0])
        for piece, following in itertools.pairwise(pieces):
            if piece.years == following.years:
                raise DataError(
                    f"{directory} has two files of {piece.years[0]}: {piece.path.name}, {following.path.name}"
                )
        return pieces

    def _notice_zip_files(self, directory: Path) -> None:
        archives = sorted(directory.glob("*.zip"))
        if archives:
            self._notify(f"{directory.name} is not unpacked: left out; unzip it there", archives[0])

    def _has_constant(self, name: str) -> bool:
        path = self._constants_file()
        return path is not None and name in self._files.get(path).data_vars

    def _read_constant(self, name: str) -> tuple[np.ndarray, str]:
        path = self._constants_file()
        if path is None:
            raise DataError(
                f"{self.path} has no constants/constants_{self.grid.name}.nc, needed for {name}; download `constants`"
            )
        if name not in self._files.get(path).data_vars:
            found = ", ".join(map(str, self._files.get(path).data_vars))
            raise DataError(f"{path} has no {name}; it has {found}")
        where = f"{path}: {name}"
        return self._read_constant_file(path, name, where), where

    def _constants_file(self) -> Path | None:
        return self._constants_in(self.path)

    def _constants_in(self, resolution_folder: Path) -> Path | None:
        folder = resolution_folder / "constants"
        found = sorted(folder.glob("constants*.nc")) if folder.is_dir() else []
        if len(found) > 1:
            raise DataError(f"{folder} has {len(found)} files of constants, expected one")
        return found[0] if found else None


# Names of the constants in such stores, and their divisors.
_CONSTANTS = {"lsm": ("land_sea_mask", 1.0), "orography": ("geopotential_at_surface", STANDARD_GRAVITY),
              "slt": ("soil_type", 1.0)}  # fmt: skip


class WeatherBench2Source(WeatherSource):
    """Reads a Zarr store of version 2 or 3."""

    kind = "weatherbench2"

    def __init__(self, path: Path, resolution: str | None):
        super().__init__(path, OpenFiles(open_zarr))
        grid = None if resolution is None else GRIDS[resolution]
        dataset = self._files.get(path)
        known = [*VARIABLES.values(), HOURLY_PRECIPITATION]
        names = {variable.folder: _name(variable) for variable in known}
        present = [variable for variable in known if names[variable.folder] in dataset.data_vars]
        if not present:
            raise DataError(
                f"{path} has the variables {', '.join(map(str, dataset.data_vars)) or '(none)'}, expected "
                f"WeatherBench-2's: {', '.join(names.values())}"
            )
        with damage_as_data_error(path, "time"):
            axis = read_time_axis(dataset[names[present[0].folder]], str(path))
        first, last = (int(str(time)[:4]) for time in (axis.start, axis.last))
        pieces = [Piece(path, range(first, last + 1))]
        series: dict[str, list[FieldSeries]] = {}
        hourly_precipitation = None
        for variable in present:
            found = _StoreSeries(variable, pieces, (names[variable.folder],), self._files, grid, self._notify)
            if variable is HOURLY_PRECIPITATION:
                hourly_precipitation = found
            else:
                series[variable.short_name] = [found]
        self._set_series(series, hourly_precipitation)

    def _has_constant(self, name: str) -> bool:
        return name in _CONSTANTS and _CONSTANTS[name][0] in self._files.get(self.path).data_vars

    def _read_constant(self, name: str) -> tuple[np.ndarray, str]:
        store_name, divisor = _CONSTANTS[name]
        if not self._has_constant(name):
            raise DataError(f"{self.path} has no {store_name}, needed for {name}")
        with damage_as_data_error(self.path, store_name):
            check_zarr_array(self.path, store_name)
        where = f"{self.path}: {store_name}"
        field = self._read_constant_file(self.path, store_name, where)
        return (field / np.float32(divisor)).astype(np.float32), where

    def _expected_name(self, variable: Variable) -> str:
        return variable.store_name


class _StoreSeries(FieldSeries):
    def _check_complete(self, piece: Piece, array: xr.DataArray, steps_a_day: int) -> None:
        is_late = self.variable.is_accumulated and array.dims[0] == "time"
        check_zarr_array(piece.path, str(array.name), may_begin_late=steps_a_day if is_late else 0)


def _name(variable: Variable) -> str:
    return variable.folder if variable is HOURLY_PRECIPITATION else variable.store_name


PERIOD_FILE = re.compile(r".+_(?P<start>[0-9]{4,12})-(?P<end>[0-9]{4,12})(?:_[0-9.]+deg)?\.nc")


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
        return CmipSeries(variable, pieces, names, self._files, self._expected_grid, self._notify)

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


def _years(start: str, end: str, path: Path) -> tuple[int, int]:
    # 185001010600-185501010000 ends with the first hour of an otherwise absent year.
    first, last = int(start[:4]), int(end[:4])
    if end[4:8] == "0101" and last > first:
        last -= 1
    if last < first:
        raise DataError(f"{path}: its name says a period from {start} to {end}, expected the earlier time first")
    return first, last + 1


Kind = Literal["auto", "weatherbench", "cmip", "weatherbench2"]

# Folder names of the resolutions; 1.40625 degrees is also called 1.4.
_FOLDERS = {**{name: name for name in GRIDS}, "1.4deg": "1.40625deg"}
_PERIOD = re.compile(r".*_[0-9]{6,12}-[0-9]{6,12}(_.*)?\.nc")
_ZARR_FILES = ("zarr.json", ".zgroup", ".zmetadata")


def open_source(path: Path, *, kind: Kind = "auto", resolution: str | None = None) -> WeatherSource:
    path = Path(path)
    if resolution is not None and resolution not in _FOLDERS:
        raise DataError(f"no resolution is named {resolution!r}; there are {', '.join(GRIDS)}")
    if not path.exists():
        raise DataError(f"{path} does not exist; expected a folder of weather data")
    if kind not in ("auto", "weatherbench", "cmip", "weatherbench2"):
        raise DataError(f"no kind of weather data is named {kind!r}; there are weatherbench, cmip, weatherbench2")
    if not path.is_dir():
        raise DataError(f"{path} is a file; expected the folder that holds a folder for each variable, or a Zarr store")
    is_zarr = any((path / name).exists() for name in _ZARR_FILES)
    if kind == "weatherbench2" or (kind == "auto" and is_zarr):
        if not is_zarr:
            raise DataError(f"{path} is not a Zarr store: it has none of {', '.join(_ZARR_FILES)}")

        return WeatherBench2Source(path, None if resolution is None else _FOLDERS[resolution])
    folder, found = _find_folder(path, resolution, prefer_cmip=kind == "cmip")
    if kind == "auto":
        kind = "cmip" if _has_period_files(folder) else "weatherbench"
    return CmipSource(folder, found) if kind == "cmip" else WeatherBenchSource(folder, found)


def _find_folder(path: Path, resolution: str | None, prefer_cmip: bool) -> tuple[Path, str | None]:
    wanted = None if resolution is None else _FOLDERS[resolution]
    if path.name in _FOLDERS:
        found = _FOLDERS[path.name]
        if wanted not in (None, found):
            raise DataError(f"{path} is the folder of {found}, asked for was {wanted}")
        return path, found
    roots = [path, *sorted(path.glob("CMIP/*")), *sorted(path.glob("MPI-ESM*"))]
    if prefer_cmip:
        roots = [*roots[1:], path]
    for root in roots:
        folders = {_FOLDERS[name]: root / name for name in _FOLDERS if (root / name).is_dir()}
        if wanted is not None and wanted in folders:
            return folders[wanted], wanted
        if wanted is None and len(folders) > 1:
            raise DataError(f"{root} holds the resolutions {', '.join(folders)}; choose one")
        if wanted is None and folders:
            name, folder = folders.popitem()
            return folder, name
    if any(each.is_dir() and any(each.glob("*.nc")) for each in path.iterdir()):
        return path, wanted
    names = sorted(each.name for each in path.iterdir())
    listed = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    expected = wanted or ", ".join(GRIDS)
    raise DataError(
        f"{path} holds {listed or 'nothing'}; expected a folder {expected} with "
        "<variable>/<variable>_<year>_5.625deg.nc, that folder itself, or a Zarr store with WeatherBench-2's names"
    )


def _has_period_files(folder: Path) -> bool:
    return any(_PERIOD.fullmatch(path.name) for each in folder.iterdir() if each.is_dir() for path in each.glob("*.nc"))
