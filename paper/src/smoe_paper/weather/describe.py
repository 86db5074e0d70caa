"""Describes an archive and whether the weather recipes can be trained on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from smoe.errors import DataError
from smoe_paper.atmosphere.axes import Grid, describe_short_year
from smoe_paper.atmosphere.store import describe_years
from smoe_paper.atmosphere.variables import DEFAULT_CONSTANTS, DEFAULT_INPUTS, Channel, parse_channel
from smoe_paper.weather.archives import LATE_START, Kind, WeatherSource, open_source
from smoe_paper.weather.series import FieldSeries

DEFAULT_YEARS = range(1979, 2019)
"""Years of the paper: 1979-2015 for training, 2016 for validation, 2017 and 2018 for the test."""

Progress = Callable[[int, int, str], None]


@dataclass
class VariableSummary:
    """A variable of an archive; `nan_share` is the share of NaNs in the values read, None if none was read."""

    name: str
    short_name: str
    units: str
    levels: tuple[int, ...]
    years: tuple[int, ...]
    num_values: int = 0
    num_nan: int = 0

    @property
    def nan_share(self) -> float | None:
        """Share of NaNs."""
        return self.num_nan / self.num_values if self.num_values else None


@dataclass
class Description:
    """Result of `describe`.

    Attributes:
        path: Folder of the archive.
        kind: Layout of the archive.
        grid: Grid of the fields.
        step_hours: Hours between times.
        years: Years with any file.
        num_times: Times in all years.
        variables: Variables in the order of the library.
        constants: Names of the constants.
        gaps: Pairs of times without data between them.
        missing: Channels and constants that the recipes use and the archive lacks.
        problems: Reasons why files cannot be used.
        remarks: Information that does not affect the use.
        notices: Corrections made while reading.
    """

    path: Path
    kind: str
    grid: Grid
    step_hours: int
    years: tuple[int, ...]
    num_times: int = 0
    variables: list[VariableSummary] = field(default_factory=list)
    constants: tuple[str, ...] = ()
    gaps: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    @property
    def is_usable(self) -> bool:
        """Returns whether the weather recipes can be trained on the archive."""
        return not self.missing and not self.problems


def describe(
    path: Path,
    *,
    kind: Kind = "auto",
    resolution: str | None = None,
    quick: bool = False,
    progress: Progress | None = None,
) -> Description:
    """Checks every file of an archive; a problem of one file does not hide those of others."""
    source = open_source(path, kind=kind, resolution=resolution)
    with source:
        found = Description(source.path, source.kind, source.grid, source.step_hours, source.years)
        starts = _look_at_times(source, found)
        readable = _look_at_headers(source, found)
        if not quick:
            _read_everything(source, found, readable, starts, progress)
        _look_for_defaults(source, found, readable)
        found.notices = list(source.notices)
    return found


def _look_at_times(source: WeatherSource, found: Description) -> dict[int, bool]:
    """Returns for each year whether it starts after a gap."""
    step = np.timedelta64(source.step_hours, "h")
    starts, last = {}, None
    for year in source.years:
        try:
            times = source.times(year)
        except DataError as error:
            _add(found.problems, str(error))
            continue
        starts[year] = last is None or times[0] != last + step
        if last is not None and starts[year]:
            found.gaps.append(f"{last} to {times[0]}")
        last = times[-1]
        found.num_times += len(times)
        found.remarks += describe_short_year(year, len(times), source.step_hours)
    return starts


def _look_at_headers(source: WeatherSource, found: Description) -> dict[str, list[int]]:
    """Returns the years of each channel whose files can be opened and agree with the others."""
    readable: dict[str, list[int]] = {}
    for series in source.all_series():
        variable = series.variable
        summary = VariableSummary(variable.folder, variable.short_name, variable.units, (), series.years)
        found.variables.append(summary)
        absent = sorted(set(source.years) - set(series.years))
        if absent:
            _complain(found, variable.short_name, f"{variable.folder} lacks {describe_years(tuple(absent))}")
        try:
            summary.levels = tuple(sorted(series.levels))
        except DataError as error:
            _complain(found, variable.short_name, str(error))
            continue
        for channel in _channels(series):
            years = readable.setdefault(channel, [])
            for year in sorted(set(series.years) - set(years)):
                try:
                    source.check([channel], [year])
                    years.append(year)
                except DataError as error:
                    _complain(found, variable.short_name, str(error))
    return {channel: years for channel, years in readable.items() if years}


def _read_everything(
    source: WeatherSource,
    found: Description,
    readable: dict[str, list[int]],
    starts: dict[int, bool],
    progress: Progress | None,
) -> None:
    tasks = [(channel, year) for channel, years in readable.items() for year in years]
    by_name = {summary.short_name: summary for summary in reversed(found.variables)}
    unexpected: dict[str, tuple[int, np.datetime64]] = {}
    for done, (channel, year) in enumerate(tasks):
        if progress is not None:
            progress(done, len(tasks), f"{channel} {year}")
        try:
            is_nan = np.isnan(source.read(channel, year))
        except DataError as error:
            _complain(found, channel.split("_")[0], str(error))
            continue
        summary = by_name[channel.split("_")[0]]
        summary.num_values += is_nan.size
        summary.num_nan += int(is_nan.sum())
        times = source.times(year)
        if summary.short_name in ("tp", "tisr") and starts.get(year):
            is_nan = is_nan[times >= times[0] + LATE_START]
        if is_nan.any():
            first = times[len(times) - len(is_nan) + int(np.argmax(is_nan.any(axis=(1, 2))))]
            count, earlier = unexpected.get(channel, (0, first))
            unexpected[channel] = (count + int(is_nan.sum()), earlier)
    if progress is not None:
        progress(len(tasks), len(tasks), "done")
    for name, (count, first) in unexpected.items():
        text = f"{name}: {count:,} values are NaN, the first at {first}; to prepare them, choose --on-nan"
        if name == "tisr":
            # WeatherBench as downloaded has some; Rasp & Thuerey replace them by 0.
            found.remarks.append(f"{text} zero-tisr")
        else:
            found.problems.append(text)


def _look_for_defaults(source: WeatherSource, found: Description, readable: dict[str, list[int]]) -> None:
    try:
        found.constants = source.constant_names
        for name in found.constants:
            source.read_constant(name)
    except DataError as error:
        _add(found.problems, str(error))
    found.missing = [name for name in DEFAULT_INPUTS if name not in readable]
    found.missing += [name for name in DEFAULT_CONSTANTS if name not in found.constants]
    if len(found.years) < 3:
        _add(found.problems, f"years {describe_years(found.years)}: recipes need three or more, for training, "
                             "validation and test")  # fmt: skip
    outside = [year for year in DEFAULT_YEARS if year not in found.years]
    if outside:
        found.remarks.append(
            f"the default years are {DEFAULT_YEARS[0]}-{DEFAULT_YEARS[-1]}, {describe_years(tuple(outside))} are not "
            "there: give --data.train-years, --data.validation-years and --data.test-years"
        )


def _channels(series: FieldSeries) -> list[str]:
    variable = series.variable
    return [str(Channel(variable.short_name, level)) for level in sorted(series.levels) or [None]]


def _complain(found: Description, short_name: str, problem: str) -> None:
    # Variables that the recipes do not read cause no problem.
    is_needed = any(parse_channel(channel).variable == short_name for channel in DEFAULT_INPUTS)
    _add(found.problems if is_needed else found.remarks, problem)


def _add(problems: list[str], problem: str) -> None:
    if problem not in problems:
        problems.append(problem)
