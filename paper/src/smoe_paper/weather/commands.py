"""`smoe data check` and `prepare` of weather."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from smoe.command_line import UsageError, parse
from smoe.errors import DataError
from smoe.training import stopped_code
from smoe_paper.atmosphere.variables import (
    DEFAULT_CONSTANTS,
    DEFAULT_INPUTS,
    VARIABLES,
    check_constant_name,
    parse_channel,
)

if TYPE_CHECKING:
    from smoe_paper.weather.archive import Archive


_DEFAULT_YEARS = range(1979, 2019)


@dataclass(frozen=True)
class Check:
    """Describes weather data and checks whether the recipes can use them.

    The exit code is 0 if they can be used and 1 otherwise, with the reasons.

    Attributes:
        path: Root of WeatherBench or its folder of one resolution, a similar folder of CMIP, or a store that
            `smoe data prepare weather` wrote.
        resolution: Grid to check, if there are several; 1.4deg is 1.40625deg.
        quick: Read only headers. This takes seconds, but does not find NaNs or damage inside files.
    """

    path: tyro.conf.Positional[Path]
    resolution: Literal["5.625deg", "2.8125deg", "1.40625deg", "1.4deg"] | None = None
    quick: bool = False


def recognises(path: Path) -> bool:
    # A prepared store; other weather data are recognised when they are opened.
    return all((path / name).exists() for name in ("zarr.json", "fields", "constants"))


def run_check(args: list[str]) -> int:
    options = parse(Check, args, prog="smoe data check")
    if recognises(options.path):
        from smoe_paper.weather.store import WeatherStore

        store = WeatherStore.open(options.path)
        sys.stdout.write(store.describe())
        if not options.quick:
            store.verify()
            sys.stdout.write("every byte is as it was written\n")
        return 0

    from smoe_paper.weather.archive import Archive

    return check_archive(Archive(options.path, options.resolution), quick=options.quick)


def check_archive(archive: Archive, *, quick: bool) -> int:
    """Prints what an archive holds, and every problem; returns 0 if the recipes can use it."""
    import numpy as np

    from smoe.training.progress import ProgressBar
    from smoe_paper.atmosphere.fields import describe_years
    from smoe_paper.weather.archive import LATE_START

    def write(text: str) -> None:
        sys.stdout.write(f"{text}\n")

    years, problems, usable = archive.years, [], set()
    rows, columns = archive.grid.shape
    write(f"{archive.path}: {rows} x {columns}, every {archive.step_hours} h, {describe_years(years)}")
    channels = []
    try:
        channels = archive.channels
        for name in archive.constants:
            archive.read_constant(name)
    except DataError as error:
        problems.append(str(error))
    with ProgressBar() as bar:
        bar.begin(len(channels), 0)
        for channel in channels:
            num_nan, first = 0, None
            try:
                for year in years:
                    archive.check([channel], year)
                    if not quick:
                        times = archive.times(year)
                        is_nan = np.isnan(archive.read(channel, times)).any(axis=(1, 2))
                        if VARIABLES[parse_channel(channel).variable].is_accumulated and year == years[0]:
                            is_nan &= times >= times[0] + LATE_START
                        num_nan += int(is_nan.sum())
                        first = first or next(iter(times[is_nan]), None)
                usable.add(channel)
            except DataError as error:
                problems.append(f"{channel}: {error}")
            if num_nan:
                problems.append(f"{channel}: NaN at {num_nan:,} times, first {first}; to prepare it, choose --on-nan")
            bar.advance(channel)
    write(f"channels: {', '.join(channels)}")
    write(f"constants: {', '.join(archive.constants)}")
    for problem in problems:
        write(f"problem: {problem}")
    missing = [name for name in DEFAULT_INPUTS if name not in usable]
    missing += [name for name in DEFAULT_CONSTANTS if name not in archive.constants]
    if missing:
        write(f"missing for the weather recipes: {', '.join(missing)}")
    outside = [year for year in _DEFAULT_YEARS if year not in years]
    if outside:
        write(f"of the default years, {describe_years(outside)} are not there: give --data.train-years and so on")
    write("cannot be used for the weather recipes" if missing else "can be used for the weather recipes")
    return 1 if missing else 0


@dataclass(frozen=True)
class Preparation:
    """Options of a preparation.

    Attributes:
        years: First and last year.
        statistics_years: First and last year of the statistics, which should be the training years. The default is 1979
            2015, or the years of --statistics-from.
        channels: Fields, such as z_500 t2m, in the order of the store.
        constants: Fields without a time dimension.
        step_hours: Hours between two times of the store; the default is the step of the data.
        on_nan: Treatment of NaNs: refuse; zero-tisr: 0 for solar radiation, as Rasp & Thuerey do, others refused;
            zero: 0 in physical units; mean: the channel's mean (no rain for tp), and the statistics are of the other
            values.
    """

    years: tuple[int, int] = (1979, 2018)
    statistics_years: tuple[int, int] | None = None
    channels: tuple[str, ...] = DEFAULT_INPUTS
    constants: tuple[str, ...] = DEFAULT_CONSTANTS
    step_hours: Literal[1, 3, 6] | None = None
    on_nan: Literal["refuse", "zero-tisr", "zero", "mean"] = "refuse"


@dataclass(frozen=True, kw_only=True)
class PrepareWeather(Preparation):
    """Writes the compact store for weather recipes. If interrupted, run the same command again to resume.

    For example: smoe data prepare weather --root ~/weatherbench --output stores/era5

    Attributes:
        root: Folder of the data as downloaded.
        output: Folder of the store.
        statistics_from: Another store whose mean and standard deviation are used, for pretraining data.
        resolution: Grid to read, if the data have several; 1.4deg is 1.40625deg.
    """

    root: Path
    output: Path
    statistics_from: Path | None = None
    resolution: Literal["5.625deg", "2.8125deg", "1.40625deg", "1.4deg"] | None = None


def run_prepare(args: list[str]) -> int:
    options = parse(PrepareWeather, args, prog="smoe data prepare weather")
    # Impossible values are typing errors and refused at once; what the data lack is found when they are opened.
    try:
        for name in options.channels:
            parse_channel(name)
        for name in options.constants:
            check_constant_name(name)
    except DataError as error:
        raise UsageError(str(error)) from None
    # torch and xarray are imported here, so that a typing error is reported at once.
    from smoe.training.progress import ProgressBar
    from smoe_paper.weather.archive import Archive
    from smoe_paper.weather.prepare import prepare
    from smoe_paper.weather.store import WeatherStore

    statistics_from = None if options.statistics_from is None else WeatherStore.open(options.statistics_from)
    try:
        with ProgressBar(speed_seconds=600) as progress:
            archive = Archive(options.root, options.resolution)
            store = prepare(archive, options.output, options, progress, statistics_from)
    except KeyboardInterrupt as stop:
        sys.stderr.write("stopped; run the same command again to resume\n")
        return stopped_code(stop)
    sys.stdout.write(store.describe())
    return 0
