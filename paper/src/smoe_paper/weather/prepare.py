"""Makes weather stores: checks the options against the data, computes the statistics, and writes block by block."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from smoe.errors import DataError
from smoe_paper.atmosphere.fields import Grid, describe_years
from smoe_paper.atmosphere.store import DTYPE, Moments, Rows, is_finished, only_writer, write_metadata
from smoe_paper.atmosphere.variables import VARIABLES, parse_channel
from smoe_paper.weather.archive import LATE_START, Archive
from smoe_paper.weather.store import (
    ARRAYS,
    FORMAT,
    PRECIPITATION,
    PRECIPITATION_EPSILON,
    NaNPolicy,
    Plan,
    WeatherStore,
    transform,
)

if TYPE_CHECKING:
    from smoe.training.progress import ProgressBar
    from smoe_paper.weather.commands import Preparation

DEFAULT_STATISTICS_YEARS = (1979, 2015)
_STATISTICS_STEPS = 512


def prepare(
    archive: Archive,
    output: Path,
    wanted: Preparation,
    progress: ProgressBar,
    statistics_from: WeatherStore | None = None,
) -> WeatherStore:
    """Writes a store, or resumes an unfinished one after its last complete block.

    The training years are read twice: once for the statistics, once to be written.
    """
    plan = _make_plan(archive, wanted, statistics_from)
    times, num_dropped = _choose_times(archive, plan, plan.years)
    shape = (len(times), len(plan.channels), *archive.grid.shape)
    with only_writer(output, ARRAYS, prod(shape) * DTYPE.itemsize) as size:
        if is_finished(output, FORMAT, plan):
            progress.notify(f"{output} holds these fields already: nothing to do")
            return WeatherStore.open(output)
        write_metadata(output, FORMAT, plan, None)
        progress.notify(f"{len(times):,} steps of {len(plan.channels)} channels; {size}")
        _write_constants(archive, plan, output)
        if statistics_from is None:
            mean, std = _compute_statistics(archive, plan, output, progress)
        else:
            indices = statistics_from.channel_indices(plan.channels)
            mean, std = statistics_from.mean[indices], statistics_from.std[indices]
        _write_times(times, output)
        fields = Rows.create(output / "fields", shape, ("time", "channel", "lat", "lon"))
        missing = fields.missing()
        progress.begin(len(missing), 0)
        for rows in missing:
            block = np.empty((rows.stop - rows.start, *shape[1:]), DTYPE)
            for index, channel in enumerate(plan.channels):
                values = transform(channel, _read(archive, channel, times[rows], plan.on_nan))
                # Values still missing become the mean, which is 0 in normalised units.
                block[:, index] = np.nan_to_num((values - mean[index]) / std[index], nan=0.0)
            fields[rows] = block
            progress.advance(f"writing {times[rows.start]}")
        results = {"mean": list(map(float, mean)), "std": list(map(float, std)), "num_dropped": num_dropped}
        write_metadata(output, FORMAT, plan, results)
    return WeatherStore.open(output)


def _make_plan(archive: Archive, wanted: Preparation, statistics_from: WeatherStore | None) -> Plan:
    step_hours = archive.step_hours if wanted.step_hours is None else wanted.step_hours
    if step_hours % archive.step_hours or 24 % step_hours:
        raise DataError(
            f"--step-hours {step_hours} must divide 24 and be a multiple of the {archive.step_hours} hours between the "
            "steps of the data"
        )
    for option, names, known in (
        ("channels", wanted.channels, archive.channels),
        ("constants", wanted.constants, archive.constants),
    ):
        missing = [name for name in names if name not in known]
        if missing or len(set(names)) < len(names) or (option == "channels" and not names):
            raise DataError(
                f"--{option} must name some of {', '.join(known)}, each once; "
                f"got {', '.join(missing or names) or 'none'}: add the files, or choose others"
            )
    statistics_years = wanted.statistics_years or DEFAULT_STATISTICS_YEARS
    if statistics_from is not None:
        statistics_years = statistics_from.statistics_years
        statistics_from.channel_indices(wanted.channels)
    years = set(_year_range("--years", wanted.years))
    if statistics_from is None:
        years |= set(_year_range("--statistics-years", statistics_years))
    missing_years = sorted(years - set(archive.years))
    if missing_years:
        raise DataError(
            f"the data lack {describe_years(missing_years)}, which --years or --statistics-years ask for; there are "
            f"{describe_years(archive.years)}"
        )
    for year in sorted(years):
        archive.check(wanted.channels, year)
    return Plan(
        wanted.channels,
        wanted.constants,
        archive.grid.latitude,
        archive.grid.longitude,
        step_hours,
        wanted.years,
        statistics_years,
        None if statistics_from is None else statistics_from.checksum,
        wanted.on_nan,
    )


def _year_range(option: str, years: tuple[int, int]) -> range:
    if years[0] > years[1]:
        raise DataError(f"{option} goes from the first to the last year, got {years[0]} {years[1]}")
    return range(years[0], years[1] + 1)


def _choose_times(archive: Archive, plan: Plan, years: tuple[int, int]) -> tuple[np.ndarray, int]:
    """Returns the steps at the hours 0, step, 2 * step, ... at which every channel is known, and those left out."""
    times = np.concatenate([archive.times(year) for year in range(years[0], years[1] + 1)])
    num_dropped = 0
    if years[0] - 1 not in archive.years:
        beginning = times[times <= times[0] + LATE_START]
        for channel in plan.channels:
            if VARIABLES[parse_channel(channel).variable].is_accumulated:
                is_known = ~np.isnan(archive.read(channel, beginning)).all(axis=(1, 2))
                num_dropped = max(num_dropped, int(np.argmax(is_known)) if is_known.any() else 0)
    kept = times[num_dropped:]
    kept = kept[kept.astype(np.int64) % plan.step_hours == 0]
    if not len(kept):
        raise DataError(f"the years {years[0]} to {years[1]} have no step at a multiple of {plan.step_hours} hours")
    return kept, num_dropped


def _read(archive: Archive, channel: str, times: np.ndarray, on_nan: NaNPolicy) -> np.ndarray:
    """Returns fields `(T, H, W)` with NaNs replaced; with the policy `mean` they stay, because it is not known here."""
    values = archive.read(channel, times)
    is_wrong = np.isinf(values)
    if channel == PRECIPITATION:
        is_wrong |= values <= -PRECIPITATION_EPSILON
    if is_wrong.any():
        raise DataError(f"{channel} is {values[is_wrong][0]:g} at {_place(is_wrong, times, archive.grid)}: repair it")
    is_missing = np.isnan(values)
    if not is_missing.any() or on_nan == "mean":
        return values
    if on_nan == "zero" or (on_nan == "zero-tisr" and channel == "tisr"):
        return np.nan_to_num(values, nan=0.0)
    raise DataError(
        f"{channel} holds {int(is_missing.sum()):,} NaN, first at {_place(is_missing, times, archive.grid)}: repair "
        "the file, leave the channel out of --channels, or choose what replaces them with --on-nan"
    )


def _place(is_there: np.ndarray, times: np.ndarray, grid: Grid) -> str:
    step, row, column = np.unravel_index(int(is_there.argmax()), is_there.shape)
    return f"{times[step]} h, latitude {grid.latitude[row]:g}, longitude {grid.longitude[column]:g}"


def _compute_statistics(
    archive: Archive, plan: Plan, output: Path, progress: ProgressBar
) -> tuple[np.ndarray, np.ndarray]:
    kept = output / ".statistics.npy"
    if kept.exists():
        mean, std = np.load(kept)
        return mean, std
    times, _ = _choose_times(archive, plan, plan.statistics_years)
    moments = [Moments() for _ in plan.channels]
    blocks = list(_blocks(times))
    progress.begin(len(blocks), 0)
    for block in blocks:
        for moment, channel in zip(moments, plan.channels, strict=True):
            moment.add(transform(channel, _read(archive, channel, block, plan.on_nan)).ravel())
        progress.advance(f"statistics {block[0]}")
    for moment, channel in zip(moments, plan.channels, strict=True):
        # Rounding alone gives a constant a deviation of about 1e-16 of its size.
        if not moment.std > 1e-9 * abs(moment.mean):
            raise DataError(
                f"channel {channel} has the value {float(moment.mean):g} everywhere in the statistics years, or none: "
                "leave it out of --channels, or choose other --statistics-years"
            )
    # The mean of precipitation is 0, so that no rain stays 0.
    mean = np.array([0.0 if name == PRECIPITATION else m.mean for name, m in zip(plan.channels, moments, strict=True)])
    std = np.array([moment.std for moment in moments])
    # A name that is no number's: a stop while it is written leaves nothing that would be read.
    np.save(output / ".statistics.partial.npy", np.stack([mean, std]))
    (output / ".statistics.partial.npy").replace(kept)
    return mean, std


def _blocks(times: np.ndarray) -> Iterator[np.ndarray]:
    for first in range(0, len(times), _STATISTICS_STEPS):
        yield times[first : first + _STATISTICS_STEPS]


def _write_constants(archive: Archive, plan: Plan, output: Path) -> None:
    # An array has at least one row.
    shape = (max(1, len(plan.constants)), *archive.grid.shape)
    constants = np.zeros(shape, DTYPE)
    for index, name in enumerate(plan.constants):
        constants[index] = archive.read_constant(name)
    Rows.create(output / "constants", shape, ("constant", "lat", "lon"))[slice(0, shape[0])] = constants


def _write_times(times: np.ndarray, output: Path) -> None:
    import zarr

    hours = times.astype("datetime64[h]").astype(np.int64)
    array = zarr.create_array(output / "time", data=hours, dimension_names=("time",), overwrite=True)
    array.attrs["units"] = "hours since 1970-01-01"
