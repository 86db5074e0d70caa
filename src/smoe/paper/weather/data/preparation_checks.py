"""Checks the options of a preparation against the data, an existing store, and the disk."""

from __future__ import annotations

from smoe.errors import DataError
from smoe.gridded.year_ranges import describe_years
from smoe.paper.atmosphere.variables import parse_channel
from smoe.paper.weather.data.source import WeatherSource
from smoe.paper.weather.data.store import WeatherStore
from smoe.paper.weather.data.store_format import NaNPolicy


def check_names(source: WeatherSource, channels: tuple[str, ...], constants: tuple[str, ...]) -> None:
    """Checks that every name is known, unique, and present in the data."""
    if not channels:
        raise DataError("--channels must name at least one channel")
    for name in channels:
        parse_channel(name)
    for option, names, known in (
        ("channels", channels, source.channels),
        ("constants", constants, source.constant_names),
    ):
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise DataError(f"--{option} names {', '.join(twice)} more than once")
        missing = [name for name in names if name not in known]
        if missing:
            raise DataError(
                f"the data lack the {option} {', '.join(missing)}; there are {', '.join(known)}: add the files, or "
                f"choose other --{option}"
            )


def check_years(source: WeatherSource, years: list[int]) -> None:
    """Checks that every year is in the data."""
    missing = tuple(year for year in years if year not in source.years)
    if missing:
        raise DataError(
            f"the data lack {describe_years(missing)}, which --years or --statistics-years ask for; there are "
            f"{describe_years(source.years)}"
        )


def check_step(source: WeatherSource, step_hours: int) -> None:
    """Checks that the store's step can be taken from the data."""
    if step_hours % source.step_hours or 24 % step_hours:
        raise DataError(
            f"--step-hours {step_hours} must divide 24 and be a multiple of the {source.step_hours} hours between the "
            "steps of the data"
        )


def check_statistics(
    store: WeatherStore, channels: tuple[str, ...], constants: tuple[str, ...], years: tuple[int, int] | None
) -> None:
    """Checks that the statistics of a store cover these years and channels."""
    if years not in (None, store.statistics_years):
        raise DataError(
            f"the statistics of {store.path} are of {store.statistics_years[0]} to {store.statistics_years[1]}, not of "
            f"--statistics-years {years[0]} {years[1]}: leave that option out"
        )
    store.channel_indices(channels)
    store.constant_indices(constants)


def check_same_options(
    existing: WeatherStore,
    source: WeatherSource,
    *,
    channels: tuple[str, ...],
    constants: tuple[str, ...],
    step_hours: int,
    on_nan: NaNPolicy,
) -> None:
    """Checks that an existing store was prepared with the same options."""
    pairs = {
        "channels": (existing.channels, channels),
        "constants": (existing.constant_names, constants),
        "step-hours": (existing.step_hours, step_hours),
        "on-nan": (existing.metadata.on_nan, on_nan),
    }
    for name, (old, new) in pairs.items():
        if old != new:
            raise DataError(
                f"{existing.path} was prepared with --{name} {_words(old)}, not {_words(new)}: years are added with "
                "the same options only; otherwise prepare a new store"
            )
    if existing.grid != source.grid:
        raise DataError(
            f"{existing.path} has a grid of {existing.grid.shape}, the data one of {source.grid.shape} or with other "
            "coordinates: prepare a new store"
        )


def check_same_statistics(existing: WeatherStore, statistics_from: WeatherStore) -> None:
    """Checks that an existing store was normalised with the same statistics."""
    indices = statistics_from.channel_indices(existing.channels)
    if (existing.mean != statistics_from.mean[indices]).any() or (existing.std != statistics_from.std[indices]).any():
        raise DataError(
            f"{existing.path} was not normalised with the statistics of {statistics_from.path}: leave out "
            "--statistics-from, or prepare a new store"
        )


def _words(value: object) -> str:
    return " ".join(str(item) for item in value) if isinstance(value, tuple) else str(value)
