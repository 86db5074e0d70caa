"""`smoe data prepare weather`: writes the compact store that training reads."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from smoe.command_line import UsageError, parse
from smoe.errors import DataError
from smoe.paper.atmosphere.variables import DEFAULT_CONSTANTS, DEFAULT_INPUTS, check_constant_name, parse_channel


@dataclass(frozen=True)
class PrepareWeather:
    """Writes the compact store that weather recipes train on; stopped at any moment, the same command goes on.

    For example: smoe data prepare weather --root ~/weatherbench --output stores/era5

    Attributes:
        root: folder of the data as downloaded, or a Zarr store.
        output: folder of the store.
        years: first and last year; later ones can be added to a finished store.
        statistics_years: first and last of the years that mean and standard deviation are of: the training years. None:
            1979 2015, or those of the store that is added to or of --statistics-from.
        channels: fields, such as z_500 t2m, in the order of the store.
        constants: fields without a time.
        step_hours: between two times of the store; None: as in the data.
        statistics_from: another store whose mean and standard deviation are used: for data to pretrain on.
        on_nan: what becomes of NaNs: refuse; zero-tisr: 0 for solar radiation, as Rasp & Thuerey do, others refused;
            zero: 0 in physical units; mean: the channel's mean (no rain for tp). The store keeps how many there were.
        kind: layout of the data.
        resolution: which grid, where the data have several; 1.4deg is 1.40625deg.
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
    """Parses, prepares, and describes the store."""
    return _prepare_weather(parse(PrepareWeather, args, prog="smoe data prepare weather"))


def _check_names(options: PrepareWeather) -> None:
    # What no data can hold is a typo; what these data lack is found when they are open.
    try:
        for name in options.channels:
            parse_channel(name)
        for name in options.constants:
            check_constant_name(name)
    except DataError as error:
        raise UsageError(str(error)) from None


def _prepare_weather(options: PrepareWeather) -> int:
    _check_names(options)
    # torch and xarray are imported from here on only: a typo is answered at once.
    from smoe.experiments.prepare_progress import PrepareProgress
    from smoe.paper.weather.data.open_source import open_source
    from smoe.paper.weather.data.prepare import prepare
    from smoe.paper.weather.data.prepare_plan import Preparation
    from smoe.paper.weather.data.store import WeatherStore
    from smoe.paper.weather.store_report import describe_store

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
            PrepareProgress() as progress,
        ):
            store = prepare(source, options.output, wanted, progress, statistics_from)
    except KeyboardInterrupt:
        sys.stderr.write("stopped; run the same command again to go on after the last whole year\n")
        return 130
    sys.stdout.write(describe_store(store))
    return 0
