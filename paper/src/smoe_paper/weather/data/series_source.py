"""Common base of the three archives: channels of file series that must agree in time."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from smoe.errors import DataError
from smoe.gridded._datasets import OpenFiles, damage_as_data_error
from smoe.gridded.grid import Grid
from smoe_paper.atmosphere.axes import find_orientation
from smoe_paper.atmosphere.plausible import check_plausible
from smoe_paper.atmosphere.variables import VARIABLES, Channel, Variable, parse_channel
from smoe_paper.weather.data.series import FieldSeries, Header, describe_years
from smoe_paper.weather.data.source import WeatherSource

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
