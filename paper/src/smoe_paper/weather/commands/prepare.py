"""`smoe data prepare weather`: writes the compact store for training."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from smoe._signals import stopped_code
from smoe.command_line import UsageError, parse
from smoe.errors import DataError
from smoe_paper.atmosphere.variables import DEFAULT_CONSTANTS, DEFAULT_INPUTS, check_constant_name, parse_channel


@dataclass(frozen=True)
class PrepareWeather:
    """Writes the compact store for weather recipes. If interrupted, run the same command again to resume.

    For example: smoe data prepare weather --root ~/weatherbench --output stores/era5

    Attributes:
        root: Folder of the data as downloaded, or a Zarr store.
        output: Folder of the store.
        years: First and last year; later years can be added to a finished store.
        statistics_years: First and last year of the statistics, which should be the training years. The default is 1979
            2015, or the years of the existing store or of --statistics-from.
        channels: Fields, such as z_500 t2m, in the order of the store.
        constants: Fields without a time dimension.
        step_hours: Hours between two times of the store; the default is the step of the data.
        statistics_from: Another store whose mean and standard deviation are used, for pretraining data.
        on_nan: Treatment of NaNs: refuse; zero-tisr: 0 for solar radiation, as Rasp & Thuerey do, others refused;
            zero: 0 in physical units; mean: the channel's mean (no rain for tp). The store records their number.
        kind: Layout of the data.
        resolution: Grid to read, if the data have several; 1.4deg is 1.40625deg.
    """

    root: Path
    output: Path
    years: tuple[int, int] = (1979, 2018)
    statistics_years: tuple[int, int] | None = None
    channels: tuple[str, ...] = DEFAULT_INPUTS
    constants: tuple[str, ...] = DEFAULT_CONSTANTS
    step_hours: Literal[1, 3, 6] | None = None
    statistics_from: Path | None = None
    on_nan: Literal["refuse", "zero-tisr", "zero", "mean"] = "refuse"
    kind: Literal["auto", "weatherbench", "cmip", "weatherbench2"] = "auto"
    resolution: Literal["5.625deg", "2.8125deg", "1.40625deg", "1.4deg"] | None = None


def run(args: list[str]) -> int:
    """Prepares a store and describes it."""
    return _prepare_weather(parse(PrepareWeather, args, prog="smoe data prepare weather"))


def _check_names(options: PrepareWeather) -> None:
    # Impossible values are typing errors and refused at once; what the data lack is found when they are opened.
    try:
        for name in options.channels:
            parse_channel(name)
        for name in options.constants:
            check_constant_name(name)
    except DataError as error:
        raise UsageError(str(error)) from None


def _prepare_weather(options: PrepareWeather) -> int:
    _check_names(options)
    # torch and xarray are imported here, so that a typing error is reported at once.
    from smoe.training.progress import ProgressBar
    from smoe_paper.weather.data.open_source import open_source
    from smoe_paper.weather.data.prepare import prepare
    from smoe_paper.weather.data.prepare_plan import Preparation
    from smoe_paper.weather.data.store import WeatherStore
    from smoe_paper.weather.store_report import describe_store

    statistics_from = None if options.statistics_from is None else WeatherStore.open(options.statistics_from)
    wanted = Preparation(
        years=options.years,
        statistics_years=options.statistics_years,
        channels=options.channels,
        constants=options.constants,
        step_hours=options.step_hours,
        on_nan=options.on_nan,
    )
    try:
        with (
            open_source(options.root, kind=options.kind, resolution=options.resolution) as source,
            ProgressBar(speed_seconds=600) as progress,
        ):
            store = prepare(source, options.output, wanted, progress, statistics_from)
    except KeyboardInterrupt as stop:
        sys.stderr.write("stopped; run the same command again to resume after the last complete year\n")
        return stopped_code(stop)
    sys.stdout.write(describe_store(store))
    return 0
