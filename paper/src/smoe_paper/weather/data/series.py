"""Time series of fields in files."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from smoe.errors import DataError
from smoe.gridded import OpenFiles, damage_as_data_error
from smoe_paper.atmosphere.axes import Orientation, TimeAxis, find_levels, find_orientation, read_time_axis
from smoe_paper.atmosphere.grid import Grid
from smoe_paper.atmosphere.store import describe_years
from smoe_paper.atmosphere.variables import VARIABLES, Channel, Variable, check_plausible, check_units, parse_channel
from smoe_paper.weather.data.source import WeatherSource

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True)
class Piece:
    """A file with a part of a variable's times; `years` are those in its name."""

    path: Path
    years: range


@dataclass(frozen=True)
class Header:
    """Contents of a piece, known without reading a field."""

    name: str
    orientation: Orientation
    time: TimeAxis
    level_axis: str | None
    levels: tuple[int, ...]
    factor: float


class FieldSeries:
    """The fields of a variable in all its files.

    Args:
        variable: Variable of the series.
        pieces: Files in the order of time.
        names: Possible names of the variable inside the files; the first one found is used.
        files: Opens the files.
        grid: Required grid of all files; None accepts any of WeatherBench's. It may be set until a file is opened.
        notify: Receives corrections, with the file.
    """

    def __init__(
        self,
        variable: Variable,
        pieces: list[Piece],
        names: tuple[str, ...],
        files: OpenFiles,
        grid: Grid | None,
        notify: Callable[[str, Path], None],
    ):
        self.variable = variable
        self.pieces = pieces
        self._names = names
        self._files = files
        self.grid = grid
        self._notify = notify
        self._headers: dict[Path, Header] = {}
        self._unreadable: set[Path] = set()

    @property
    def years(self) -> tuple[int, ...]:
        """Years in the names of the files."""
        return tuple(sorted({year for piece in self.pieces for year in piece.years}))

    @property
    def levels(self) -> tuple[int, ...]:
        """Levels of the first file, in hPa; empty for a variable without levels."""
        return self.header(self.pieces[0]).levels

    def header(self, piece: Piece) -> Header:
        """Returns the contents of a file, which is opened and checked once."""
        if piece.path not in self._headers:
            self._headers[piece.path] = self._read_header(piece)
        return self._headers[piece.path]

    def can_be_opened(self, first_year: int, last_year: int) -> bool:
        """Checks the headers of the files that may hold times of these years."""
        for piece in self.pieces_of(first_year, last_year):
            try:
                if piece.path in self._unreadable:
                    return False
                self.header(piece)
            except DataError:
                self._unreadable.add(piece.path)
                return False
        return True

    def pieces_of(self, first_year: int, last_year: int) -> list[Piece]:
        """Returns the files that may hold times of these years."""
        return [p for p in self.pieces if p.years[0] <= last_year and p.years[-1] >= first_year]

    def times(self, year: int) -> np.ndarray:
        """Returns all times of a year in the files, datetime64[m]; may be empty."""
        first, last = np.datetime64(f"{year}-01-01", "m"), np.datetime64(f"{year + 1}-01-01", "m")
        # The first time of a year may be the last one of the file before.
        pieces = self.pieces_of(year - 1, year)
        parts = [header.time.values() for header in map(self.header, pieces) if header.time.last >= first]
        times = np.concatenate(parts) if parts else np.empty(0, "datetime64[m]")
        return times[(times >= first) & (times < last)]

    def read(self, level: int | None, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns fields at ascending times, float32 `(T, H, W)`, and a mask of the times in the files, `(T,)`.

        Fields of times that no file has are NaN.
        """
        years = times[[0, -1]].astype("datetime64[Y]").astype(int) + 1970
        pieces = self.pieces_of(int(years[0]) - 1, int(years[1]))
        found = np.zeros(len(times), dtype=bool)
        fields: np.ndarray | None = None
        for piece in pieces:
            header = self.header(piece)
            on_axis, index = header.time.find(times)
            if not on_axis.any():
                continue
            part = self._read_piece(piece, header, level, index)
            if on_axis.all():
                return part, on_axis
            if fields is None:
                fields = np.full((len(times), *part.shape[1:]), np.nan, dtype=np.float32)
            fields[on_axis] = part
            found |= on_axis
        if fields is None:
            raise DataError(
                f"{self.variable.folder} has no time between {times[0]} and {times[-1]}; its files cover the years "
                f"{describe_years(self.years)}"
            )
        return fields, found

    def level_index(self, piece: Piece, level: int | None) -> int | None:
        """Returns the index of a level in a file; None for a variable without levels."""
        levels = self.header(piece).levels
        if level is None:
            return None
        if level not in levels:
            raise DataError(f"{piece.path} has no level {level} hPa; it has {', '.join(map(str, levels))}")
        return levels.index(level)

    def _read_piece(self, piece: Piece, header: Header, level: int | None, index: np.ndarray) -> np.ndarray:
        orientation = header.orientation
        # A slice reads one block of the file; an index array would read step by step.
        stride = int(index[1] - index[0]) if len(index) > 1 else 1
        where: dict[Hashable, slice | int] = {header.time.name: slice(int(index[0]), int(index[-1]) + 1, stride)}
        level_index = self.level_index(piece, level)
        if header.level_axis is not None and level_index is not None:
            where[header.level_axis] = level_index
        dims = (header.time.name, orientation.latitude, orientation.longitude)
        with damage_as_data_error(piece.path, header.name):
            array = self._files.get(piece.path)[header.name].isel(where)
            array = array.isel({dim: 0 for dim in array.dims if dim not in dims}).transpose(*dims)
            fields = orientation.turn(array.values)
        return fields if header.factor == 1.0 else fields * np.float32(header.factor)

    def _read_header(self, piece: Piece) -> Header:
        dataset = self._files.get(piece.path)
        name = next((name for name in self._names if name in dataset.data_vars), None)
        if name is None:
            raise DataError(
                f"{piece.path} holds {', '.join(map(str, dataset.data_vars)) or 'no variable'}, expected "
                f"{' or '.join(self._names)} ({self.variable.folder})"
            )
        where = f"{piece.path}: {name}"
        array = dataset[name]
        with damage_as_data_error(piece.path, name):
            orientation = find_orientation(array, self.grid, where)
            time = self.place_in_time(read_time_axis(array, where), where)
            self._check_complete(piece, array, 24 * 60 // time.step if time.step else 1)
            level_axis, levels, in_pascal = None, (), False
            if self.variable.has_levels:
                level_axis, levels, in_pascal = find_levels(array, where)
        known = {orientation.latitude, orientation.longitude, time.name, level_axis}
        extra = [str(dim) for dim in array.dims if dim not in known and array.sizes[dim] > 1]
        if extra:
            raise DataError(
                f"{where} has the dimension {extra[0]!r} of length {array.sizes[extra[0]]}; choose one first"
            )
        self._check_promise(piece, time)
        for notice in orientation.notices():
            self._notify(notice, piece.path)
        usual = (time.name, level_axis, orientation.latitude, orientation.longitude)
        if tuple(dim for dim in array.dims if dim in known) != tuple(dim for dim in usual if dim is not None):
            self._notify(
                f"dimensions are in the order {', '.join(map(str, array.dims))}: read as time, level, lat, lon",
                piece.path,
            )
        if in_pascal:
            self._notify("levels are in Pa: read as hPa", piece.path)
        factor = self.unit_factor(array, orientation, piece, where)
        return Header(name, orientation, time, level_axis, levels, factor)

    def _check_promise(self, piece: Piece, time: TimeAxis) -> None:
        # One time of the next year is usual in the CMIP archive, whose files end with an hour 0.
        first = np.datetime64(f"{piece.years[0]}-01-01", "m")
        beyond = np.datetime64(f"{piece.years[-1] + 1}-01-01", "m") + np.timedelta64(1, "D")
        if time.start < first or time.last >= beyond:
            raise DataError(
                f"{piece.path} holds times from {time.start} to {time.last}, but its name says "
                f"{describe_years(tuple(piece.years))}"
            )

    def _check_complete(self, piece: Piece, array: xr.DataArray, steps_a_day: int) -> None:
        """Refuses an array with missing parts that opening the file does not reveal."""

    def place_in_time(self, axis: TimeAxis, where: str) -> TimeAxis:  # noqa: ARG002 - for other archives
        """Returns the times to which the fields belong; here those of the file."""
        return axis

    def unit_factor(self, array: xr.DataArray, orientation: Orientation, piece: Piece, where: str) -> float:  # noqa: ARG002
        """Returns the factor of the file's values; here they must be in the variable's units."""
        check_units(self.variable, array.attrs.get("units"), where)
        return 1.0


# Accumulated variables of ERA5 begin seven hours after the others. Training leaves out one day at the start.
LATE_START = np.timedelta64(24, "h")


class SeriesSource(WeatherSource):
    """A source made of file series. An archive's own class finds the files and calls `_set_series`.

    Args:
        path: Folder of the archive, for messages.
        files: Opens the files.
    """

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
        self.grid: Grid = header.orientation.grid
        for series_of_any in everything:
            series_of_any.grid = self.grid
        if header.time.step not in (60, 360):
            found = f"steps of {header.time.step / 60:g} h" if header.time.step else "a single time"
            raise DataError(f"{path} has {found}, expected times 1 h or 6 h apart")
        self.step_hours = header.time.step // 60

    def all_series(self) -> list[FieldSeries]:
        """Returns the series of every variable, in the order of `VARIABLES`; hourly precipitation is last."""
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
        """Years with a file of at least one variable."""
        return tuple(sorted({year for series in self.all_series() for year in series.years}))

    @property
    def channels(self) -> tuple[str, ...]:
        """Every channel, in the order of `VARIABLES`, levels ascending."""
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
        """Returns the times of a year in the first variable; the others must have the same."""
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
        """Returns the fields of a channel in a year; only its level is read."""
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
                for piece in series.pieces_of(year, year):
                    series.level_index(piece, level)
                self._check_found(series, year, times, np.isin(times.astype("datetime64[m]"), series.times(year)))

    def close(self) -> None:
        """Closes the files; reading opens them again."""
        self._files.close()

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
