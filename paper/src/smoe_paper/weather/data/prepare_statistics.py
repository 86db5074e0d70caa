"""Statistics of a store: computed from the data, or taken from another store."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from smoe._files import write_atomically
from smoe.errors import DataError
from smoe.gridded.field_files import DTYPE
from smoe.gridded.statistics import Moments, add_year
from smoe_paper.weather.data.journal import Journal
from smoe_paper.weather.data.prepare_plan import Plan
from smoe_paper.weather.data.source import WeatherSource
from smoe_paper.weather.data.store import WeatherStore
from smoe_paper.weather.data.store_format import Metadata
from smoe_paper.weather.data.year_spans import read_span


def begin_metadata(
    source: WeatherSource, plan: Plan, existing: WeatherStore | None, statistics_from: WeatherStore | None
) -> Metadata:
    """Returns the metadata that are known before anything is read: of an existing store, or without years."""
    notices = tuple(source.notices)
    if existing is not None:
        old = existing.metadata
        return replace(old, notices=old.notices + tuple(text for text in notices if text not in old.notices))
    metadata = Metadata(
        channels=plan.channels,
        constant_names=plan.constants,
        latitude=tuple(source.grid.latitude),
        longitude=tuple(source.grid.longitude),
        step_hours=plan.step_hours,
        mean=(),
        std=(),
        constant_mean=(),
        constant_std=(),
        statistics_years=plan.statistics_years,
        statistics_from=plan.statistics_from,
        on_nan=plan.on_nan,
        constants_crc32=0,
        notices=notices,
        years=(),
    )
    if statistics_from is None:
        return metadata
    other = statistics_from.metadata
    channels = statistics_from.channel_indices(plan.channels)
    constants = statistics_from.constant_indices(plan.constants)
    return replace(
        metadata,
        mean=tuple(other.mean[index] for index in channels),
        std=tuple(other.std[index] for index in channels),
        constant_mean=tuple(other.constant_mean[index] for index in constants),
        constant_std=tuple(other.constant_std[index] for index in constants),
    )


def compute_statistics(
    source: WeatherSource,
    plan: Plan,
    journal: Journal,
    advance: Callable[[str], None],
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns mean and std of all channels over all steps of the statistics years; skips years in the journal."""
    for span in plan.statistics_spans:
        if span.year in journal.moments:
            continue
        moments: dict[str, Moments] = {}
        for channel in plan.channels:
            values, _ = read_span(source, channel, span=span, on_nan=plan.on_nan)
            moments[channel] = add_year(Moments(), channel, values)
            advance(f"statistics {span.year} {channel}")
        journal.add_moments(span.year, moments)
    pairs = []
    for channel in plan.channels:
        total = Moments()
        for span in plan.statistics_spans:
            total = total.merge(journal.moments[span.year][channel])
        pairs.append(total.mean_and_std(channel))
    return tuple(mean for mean, _ in pairs), tuple(std for _, std in pairs)


def read_constants(source: WeatherSource, names: tuple[str, ...]) -> np.ndarray:
    """Returns the constants in physical units, `(K, H, W)`.

    Raises:
        DataError: If one is missing or not finite.
    """
    constants = np.empty((len(names), *source.grid.shape), DTYPE)
    for index, name in enumerate(names):
        constants[index] = source.read_constant(name)
        num_wrong = int((~np.isfinite(constants[index])).sum())
        if num_wrong:
            raise DataError(f"the constant {name} is not finite at {num_wrong} points: repair the file")
    return constants


def write_constants(constants: np.ndarray, path: Path, metadata: Metadata) -> Metadata:
    """Writes the constants and returns the metadata with their checksum and, unless known, their statistics."""
    content = constants.tobytes()
    write_atomically(path, lambda file: file.write(content))
    metadata = replace(metadata, constants_crc32=zlib.crc32(content))
    if metadata.statistics_from is not None:
        return metadata
    pairs = [
        Moments().add(values.astype(np.float64)).mean_and_std(name)
        for name, values in zip(metadata.constant_names, constants, strict=True)
    ]
    return replace(
        metadata, constant_mean=tuple(mean for mean, _ in pairs), constant_std=tuple(std for _, std in pairs)
    )
