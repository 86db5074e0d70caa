"""Makes weather stores: checks the options against the data, computes the statistics, and writes block by block."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from smoe.errors import DataError
from smoe.gridded import FieldMoments, damage_as_data_error
from smoe_paper.atmosphere.fields import Grid, describe_years
from smoe_paper.atmosphere.store import DTYPE, write_store
from smoe_paper.atmosphere.variables import VARIABLES, check_plausible, parse_channel
from smoe_paper.weather.archive import LATE_START, Archive
from smoe_paper.weather.store import (
    PRECIPITATION,
    PRECIPITATION_EPSILON,
    NaNPolicy,
    WeatherPlan,
    WeatherStore,
    transform,
)

if TYPE_CHECKING:
    from smoe.training.progress import ProgressBar
    from smoe_paper.weather.commands import Preparation

_BLOCK_BYTES = 2**26
_HOUR = np.timedelta64(1, "h")


def prepare(archive: Archive, output: Path, wanted: Preparation, progress: ProgressBar) -> WeatherStore:
    """Writes a store, or resumes an unfinished one after its last complete block.

    The training years are read twice: once for the statistics, once to be written.
    """
    steps_of = _choose_times(archive, wanted)
    times = np.concatenate([steps_of[year] for year in _years("--years", wanted.years)])
    step_hours = wanted.step_hours or int(np.diff(times)[0] / _HOUR)
    plan = WeatherPlan(
        wanted.channels,
        wanted.constants,
        archive.grid.latitude,
        archive.grid.longitude,
        step_hours,
        wanted.years,
        wanted.statistics_years,
        wanted.on_nan,
    )
    with write_store(output, WeatherStore.format, plan, plan.shapes(len(times)), progress.notify) as store:
        if store.is_finished:
            return WeatherStore.open(output)
        if "std" not in store.results:
            if plan.constants:
                store.write("constants", 0, np.stack([archive.read_constant(name) for name in plan.constants]))
            np.save(output / "time.npy", times)
            mean, std = _compute_statistics(archive, wanted, steps_of, progress)
            store.save(mean=mean, std=std)
        mean, std = store.results["mean"], store.results["std"]
        open_year = functools.lru_cache(maxsize=1)(functools.partial(archive.open, channels=wanted.channels))
        blocks = list(_blocks(archive.grid, wanted, steps_of, wanted.years))
        num_done, first = store.results.get("num_blocks", 0), 0
        progress.begin(len(blocks), num_done)
        for number, (year, block) in enumerate(blocks):
            if number >= num_done:
                fields = np.empty((len(block), *store.shapes["fields"][1:]), DTYPE)
                for index, name in enumerate(plan.channels):
                    values = transform(name, _read(open_year(year), name, block, wanted.on_nan))
                    fields[:, index] = (values - mean[index]) / std[index]
                store.write("fields", first, fields)
                store.save(num_blocks=number + 1)
                progress.advance(f"writing {block[0]}")
            first += len(block)
        store.save(is_finished=True)
    return WeatherStore.open(output)


def _years(option: str, years: tuple[int, int]) -> range:
    if years[0] > years[1]:
        raise DataError(f"{option} goes from the first to the last year, got {years[0]} {years[1]}")
    return range(years[0], years[1] + 1)


def _choose_times(archive: Archive, wanted: Preparation) -> dict[int, np.ndarray]:
    """Checks the options; returns the steps of each year at which every channel is known."""
    for option, names in (("channels", wanted.channels), ("constants", wanted.constants)):
        if len(set(names)) < len(names) or not wanted.channels:
            raise DataError(f"--{option} must name at least one field, and each once, got {', '.join(names) or 'none'}")
    missing = [name for name in wanted.constants if name not in archive.constants]
    if missing:
        raise DataError(f"--constants: {archive.path} has no {missing[0]}; it has {', '.join(archive.constants)}")
    years = sorted({*_years("--years", wanted.years), *_years("--statistics-years", wanted.statistics_years)})
    lacking = [year for year in years if year not in archive.years]
    if lacking:
        raise DataError(
            f"the data lack {describe_years(lacking)}, which --years or --statistics-years ask for; there are "
            f"{describe_years(archive.years)}"
        )
    steps_of: dict[int, np.ndarray] = {}
    for year in years:
        fields = archive.open(year, wanted.channels)
        times = fields.time.values.astype("datetime64[h]")
        steps = np.unique(np.diff(times)) / _HOUR
        every = wanted.step_hours or int(steps[0])
        if len(steps) != 1 or 24 % steps[0] or every % steps[0]:
            raise DataError(
                f"the times of {year} in {archive.path} are {', '.join(f'{each:g}' for each in steps)} h apart, "
                f"expected a part of a day, of which --step-hours {wanted.step_hours} must be a multiple"
            )
        num_dropped = 0
        if year - 1 not in archive.years:
            beginning = times[times <= times[0] + LATE_START]
            for channel in wanted.channels:
                if VARIABLES[parse_channel(channel).variable].is_accumulated:
                    is_known = (
                        fields[channel].sel(time=beginning.astype("datetime64[ns]")).notnull().any(("lat", "lon"))
                    )
                    num_dropped = max(num_dropped, int(np.argmax(is_known.values)))
        steps_of[year] = times[num_dropped:][times[num_dropped:].astype(np.int64) % every == 0]
        if not len(steps_of[year]):
            raise DataError(f"the year {year} in {archive.path} has no step at a multiple of {every} hours")
    return steps_of


def _blocks(
    grid: Grid, wanted: Preparation, steps_of: dict[int, np.ndarray], years: tuple[int, int]
) -> Iterator[tuple[int, np.ndarray]]:
    size = max(1, _BLOCK_BYTES // (DTYPE.itemsize * len(wanted.channels) * prod(grid.shape)))
    for year in range(years[0], years[1] + 1):
        for first in range(0, len(steps_of[year]), size):
            yield year, steps_of[year][first : first + size]


def _read(fields: xr.Dataset, channel: str, times: np.ndarray, on_nan: NaNPolicy) -> np.ndarray:
    path, parsed = Path(fields.attrs["path"]), parse_channel(channel)
    # A slice reads one block of the file; an index array would read step by step.
    first, last = np.searchsorted(fields.time.values, times[[0, -1]])
    array = fields[channel].isel(time=slice(first, last + 1, max(1, (last - first) // max(1, len(times) - 1))))
    with damage_as_data_error(path, f"{channel} from {times[0]} to {times[-1]}"):
        values = array.values
    check_plausible(values, VARIABLES[parsed.variable], parsed.level, times, f"{path}: {channel}")
    if channel == PRECIPITATION and (is_wrong := values <= -PRECIPITATION_EPSILON).any():
        raise DataError(f"{channel} is {values[is_wrong][0]:g} at {_place(is_wrong, array)}: repair it")
    is_missing = np.isnan(values)
    if not is_missing.any() or (on_nan == "zero-tisr" and channel == "tisr"):
        return np.nan_to_num(values, nan=0.0)
    raise DataError(
        f"{channel} holds {int(is_missing.sum()):,} NaN, first at {_place(is_missing, array)}: repair the file, leave "
        "the channel out of --channels, or see --on-nan"
    )


def _place(is_there: np.ndarray, array: xr.DataArray) -> str:
    found = array[np.unravel_index(int(is_there.argmax()), is_there.shape)]
    time = found.time.values.astype("datetime64[h]")
    return f"{time} h, latitude {float(found.lat):g}, longitude {float(found.lon):g}"


def _compute_statistics(
    archive: Archive, wanted: Preparation, steps_of: dict[int, np.ndarray], progress: ProgressBar
) -> tuple[list[float], list[float]]:
    moments = {channel: FieldMoments((1, *archive.grid.shape)) for channel in wanted.channels}
    blocks = list(_blocks(archive.grid, wanted, steps_of, wanted.statistics_years))
    open_year = functools.lru_cache(maxsize=1)(functools.partial(archive.open, channels=wanted.channels))
    progress.begin(len(blocks), 0)
    for year, block in blocks:
        for channel, moment in moments.items():
            moment.add(transform(channel, _read(open_year(year), channel, block, wanted.on_nan))[:, None])
        progress.advance(f"statistics {block[0]}")
    # The mean of precipitation is 0, so that no rain stays 0.
    found = {channel: [float(each[0]) for each in moment.by_channel()] for channel, moment in moments.items()}
    return [0.0 if channel == PRECIPITATION else mean for channel, (mean, _) in found.items()], [
        std for _, std in found.values()
    ]
