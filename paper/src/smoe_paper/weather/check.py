"""`smoe data check` of weather: describes an archive, and whether the recipes can be trained on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from smoe.errors import DataError
from smoe_paper.atmosphere.axes import describe_short_year
from smoe_paper.atmosphere.store import describe_years
from smoe_paper.atmosphere.variables import DEFAULT_CONSTANTS, DEFAULT_INPUTS, Channel, parse_channel
from smoe_paper.weather.archives import LATE_START, Kind, WeatherSource, open_source
from smoe_paper.weather.series import FieldSeries

if TYPE_CHECKING:
    from rich.console import Console

# Years of the paper: 1979-2015 for training, 2016 for validation, 2017 and 2018 for the test.
_DEFAULT_YEARS = range(1979, 2019)

Progress = Callable[[int, int, str], None]


@dataclass
class Description:
    """Contents of an archive; `missing` is what the recipes use and the archive lacks."""

    facts: list[str] = field(default_factory=list)
    variables: list[tuple[str, str, str, str, str]] = field(default_factory=list)
    constants: tuple[str, ...] = ()
    missing: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    @property
    def is_usable(self) -> bool:
        return not self.missing and not self.problems

    def complain(self, error: object, short_name: str | None = None) -> None:
        # Variables that the recipes do not read cause no problem.
        needed = {parse_channel(channel).variable for channel in DEFAULT_INPUTS}
        lines = self.problems if short_name is None or short_name in needed else self.remarks
        if str(error) not in lines:
            lines.append(str(error))


def describe(
    path: Path,
    *,
    kind: Kind = "auto",
    resolution: str | None = None,
    quick: bool = False,
    progress: Progress = lambda *_: None,
) -> Description:
    """Checks every file of an archive; a problem of one file does not hide those of others."""
    found = Description()
    with open_source(path, kind=kind, resolution=resolution) as source:
        rows, columns = source.grid.shape
        grid = f"{source.grid.name} ({rows} x {columns})"
        found.facts = [f"{source.path}: {source.kind}, {grid}, every {source.step_hours} h"]
        after_gap = _check_times(source, found)
        readable: set[str] = set()
        everything = source.all_series()
        for number, series in enumerate(everything):
            progress(number, len(everything), series.variable.folder)
            readable |= _check_series(source, series, found, quick, after_gap)
        progress(len(everything), len(everything), "done")
        _check_defaults(source, found, readable)
        found.remarks = [*(f"put right: {notice}" for notice in source.notices), *found.remarks]
    return found


def _check_times(source: WeatherSource, found: Description) -> dict[int, bool]:
    """Returns for each year whether it starts after a gap."""
    step = np.timedelta64(source.step_hours, "h")
    after_gap, last, num_times = {}, None, 0
    for year in source.years:
        try:
            times = source.times(year)
        except DataError as error:
            found.complain(error)
            continue
        after_gap[year] = last is None or times[0] != last + step
        if last is not None and after_gap[year]:
            found.remarks.append(f"gap in time: {last} to {times[0]}")
        last = times[-1]
        num_times += len(times)
        found.remarks += describe_short_year(year, len(times), source.step_hours)
    found.facts.append(f"years {describe_years(source.years)}, {num_times} times")
    return after_gap


def _check_series(
    source: WeatherSource, series: FieldSeries, found: Description, quick: bool, after_gap: dict[int, bool]
) -> set[str]:
    """Describes a variable and returns its channels of which at least one year can be read."""
    short_name, folder, readable = series.variable.short_name, series.variable.folder, set()
    absent = sorted(set(source.years) - set(series.years))
    if absent:
        found.complain(f"{folder} lacks {describe_years(absent)}", short_name)
    try:
        levels = sorted(series.levels)
    except DataError as error:
        found.complain(error, short_name)
        return readable
    num_nan = num_values = 0
    for channel in [str(Channel(short_name, level)) for level in levels or [None]]:
        unexpected: list[tuple[int, np.datetime64]] = []
        for year in series.years:
            try:
                source.check([channel], [year])
                readable.add(channel)
                if quick:
                    continue
                is_nan, times = np.isnan(source.read(channel, year)), source.times(year)
            except DataError as error:
                found.complain(error, short_name)
                continue
            num_nan, num_values = num_nan + int(is_nan.sum()), num_values + is_nan.size
            if short_name in ("tp", "tisr") and after_gap.get(year):
                is_nan = is_nan[times >= times[0] + LATE_START]
            if is_nan.any():
                place = len(times) - len(is_nan) + int(np.argmax(is_nan.any(axis=(1, 2))))
                unexpected.append((int(is_nan.sum()), times[place]))
        if unexpected:
            count, first = sum(count for count, _ in unexpected), unexpected[0][1]
            text = f"{channel}: {count:,} values are NaN, the first at {first}; to prepare them, choose --on-nan"
            # WeatherBench as downloaded has some of radiation; Rasp & Thuerey replace them by 0.
            found.remarks.append(f"{text} zero-tisr") if channel == "tisr" else found.problems.append(text)
    percent = f"{100 * num_nan / num_values:.2g} %" if num_values else "not read"
    named = " ".join(map(str, levels)) or "-"
    found.variables.append((folder, short_name, named, describe_years(series.years), percent))
    return readable


def _check_defaults(source: WeatherSource, found: Description, readable: set[str]) -> None:
    try:
        found.constants = source.constant_names
        for name in found.constants:
            source.read_constant(name)
    except DataError as error:
        found.complain(error)
    found.missing = [name for name in DEFAULT_INPUTS if name not in readable]
    found.missing += [name for name in DEFAULT_CONSTANTS if name not in found.constants]
    if len(source.years) < 3:
        years = describe_years(source.years)
        found.complain(f"years {years}: recipes need three or more, for training, validation and test")
    outside = [year for year in _DEFAULT_YEARS if year not in source.years]
    if outside:
        found.remarks.append(
            f"the default years are {_DEFAULT_YEARS[0]}-{_DEFAULT_YEARS[-1]}, {describe_years(outside)} are not there: "
            "give --data.train-years, --data.validation-years and --data.test-years"
        )


def print_description(found: Description, quick: bool, console: Console) -> None:
    """Prints the facts, a table of variables, remarks, problems, and the verdict."""
    from rich.table import Table

    for fact in found.facts:
        console.print(fact)
    table = Table()
    for header in ("variable", "name", "levels (hPa)", "years", "NaN"):
        table.add_column(header, no_wrap=header == "variable")
    for row in found.variables:
        table.add_row(*row)
    console.print(table, soft_wrap=False)
    console.print(f"constants: {', '.join(found.constants) or 'none'}")
    for line in (*(f"remark: {text}" for text in found.remarks), *(f"problem: {text}" for text in found.problems)):
        console.print(line)
    if found.missing:
        console.print(f"missing for the weather recipes: {', '.join(found.missing)}")
    verdict = "can be used" if found.is_usable else "cannot be used"
    console.print(f"{verdict} for the weather recipes" + (", as far as the headers tell" if quick else ""))
