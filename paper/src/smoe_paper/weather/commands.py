"""`smoe data prepare weather`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from smoe.command_line import UsageError, parse
from smoe.errors import DataError
from smoe_paper.atmosphere.variables import DEFAULT_CONSTANTS, DEFAULT_INPUTS, check_constant_name, parse_channel


@dataclass(frozen=True)
class Preparation:
    years: tuple[int, int] = (1979, 2018)  # First and last year.
    # First and last year of the statistics, which should be the training years.
    statistics_years: tuple[int, int] = (1979, 2015)
    channels: tuple[str, ...] = DEFAULT_INPUTS  # Fields, such as z_500 t2m, in the order of the store.
    constants: tuple[str, ...] = DEFAULT_CONSTANTS  # Fields without a time dimension.
    # Hours between two times of the store; the default is the step of the data.
    step_hours: Literal[1, 3, 6] | None = None
    # Treatment of NaNs: refuse; zero-tisr: 0 for solar radiation, as Rasp & Thuerey do, others refused.
    on_nan: Literal["refuse", "zero-tisr"] = "refuse"


@dataclass(frozen=True, kw_only=True)
class PrepareWeather(Preparation):
    """Writes the compact store for weather recipes. If interrupted, run the same command again to resume.

    For example: smoe data prepare weather --root ~/weatherbench --output stores/era5
    """

    root: Path  # Folder of the data as downloaded.
    output: Path  # Folder of the store.
    # Grid to read, if the data have several; 1.4deg is 1.40625deg.
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
    from smoe_paper.atmosphere.store import run_preparation
    from smoe_paper.weather.archive import Archive
    from smoe_paper.weather.prepare import prepare
    from smoe_paper.weather.store import WeatherStore

    def work(progress: ProgressBar) -> WeatherStore:
        return prepare(Archive(options.root, options.resolution), options.output, options, progress)

    return run_preparation(work)
