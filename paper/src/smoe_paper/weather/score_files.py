"""Scores a forecast file, from this library or any other, against the fields of a store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from smoe.errors import DataError
from smoe.training.metrics import MetricSums
from smoe_paper.weather.data.baselines import BASELINES, BaselineName, Baselines
from smoe_paper.weather.data.forecasts import ForecastFile
from smoe_paper.weather.data.store import WeatherStore
from smoe_paper.weather.data.truth import Progress, Truth
from smoe_paper.weather.scores import Scores, physical_metrics, score_baselines

_FORECASTS_PER_PIECE = 64
_MOST_NAMED = 3


@dataclass(frozen=True)
class LeadScores:
    """Scores of all forecasts of one lead.

    Attributes:
        lead_hours: Lead of the forecasts.
        num_forecasts: Number of scored forecasts.
        scores: Scores of the file.
        baselines: Scores of persistence and the climatologies on the same forecasts.
        notices: Forecasts that were left out, with reasons.
    """

    lead_hours: int
    num_forecasts: int
    scores: Scores
    baselines: dict[str, Scores]
    notices: tuple[str, ...]


def score_file(
    path: Path,
    store: WeatherStore,
    channels: Sequence[str],
    train_years: tuple[int, int] | None = None,
    *,
    skips_nan: bool = False,
    progress: Progress | None = None,
) -> tuple[list[str], list[LeadScores]]:
    """Scores each lead of a file.

    Args:
        path: NetCDF file or Zarr folder, see `ForecastFile`.
        store: Store of the true fields.
        channels: Channels to score; those that the file or the store lacks are left out with a notice.
        train_years: Years of the climatologies; None for those of the store's statistics.
        skips_nan: Leave out forecasts with NaN instead of refusing the file.
        progress: Called with the progress.

    Returns:
        Notices about the whole file, and the scores of each lead with at least one comparable forecast.

    Raises:
        DataError: If the file cannot be used, or none of it can be compared with the store.
    """
    in_store = [name for name in channels if name in store.channels]
    file = ForecastFile(path, in_store or channels, store.grid)
    notices = list(file.notices)
    for name in channels:
        if name not in store.channels:
            notices.append(f"{name} is not scored: it is not in the store")
        elif name in file.missing:
            notices.append(f"{name} is not scored: it is not in {path}")
    truth = Truth(store, file.channels)
    results = []
    try:
        # One pass over the training years, only if there is something to compare.
        baselines: Baselines | None = None
        for number, lead_hours in enumerate(file.lead_hours):
            found = np.flatnonzero(truth.has(file.init_times + np.timedelta64(lead_hours, "h")))
            outside = np.delete(file.init_times, found)
            said = []
            if len(outside):
                said.append(
                    f"{len(outside)} of {len(file.init_times)} forecasts are for times that are not in the store and "
                    f"are left out: those from {_name_times(outside)}"
                )
            if not len(found):
                notices.append(f"{lead_hours} h: {said[0]}")
                continue
            if baselines is None:
                baselines = Baselines(store, file.channels, train_years or store.statistics_years, progress)
            results.append(_score_lead(file, number, found, baselines, said, skips_nan, progress))
    finally:
        file.close()
    if not results:
        raise DataError(
            f"no forecast of {path} is for a time in the store {store.path}: the file's start from "
            f"{file.init_times[0]} to {file.init_times[-1]}, the store has fields from {store.times[0]} to "
            f"{store.times[-1]}"
        )
    return notices, results


def _score_lead(
    file: ForecastFile,
    lead: int,
    found: np.ndarray,
    baselines: Baselines,
    said: list[str],
    skips_nan: bool,
    progress: Progress | None,
) -> LeadScores:
    truth, lead_hours = baselines.truth, file.lead_hours[lead]
    hours = np.timedelta64(lead_hours, "h")
    years = (file.init_times[found] + hours).astype("datetime64[Y]").astype(int) + 1970
    climatology = truth.mean((int(years.min()), int(years.max())), progress)
    total = MetricSums(physical_metrics(truth.store.grid.latitude, truth.channels, climatology))
    scored: list[np.ndarray] = []
    broken: list[np.datetime64] = []
    num_nan = 0
    text = f"scores of {file.path.name}, {lead_hours} h"
    for first in range(0, len(file.init_times), _FORECASTS_PER_PIECE):
        piece = slice(first, first + _FORECASTS_PER_PIECE)
        keep = found[(found >= first) & (found < piece.stop)]
        if not len(keep):
            continue
        fields = np.stack([file.read(name, piece, lead) for name in truth.channels], axis=1)[keep - first]
        is_nan = ~np.isfinite(fields)
        num_nan += int(is_nan.sum())
        is_whole = ~is_nan.any((1, 2, 3))
        broken += list(file.init_times[keep[~is_whole]])
        inits = file.init_times[keep[is_whole]]
        if len(inits):
            target = torch.from_numpy(truth.read(inits + hours))
            total.add(torch.from_numpy(fields[is_whole]).double(), target)
            scored.append(inits)
        if progress is not None:
            progress(text, min(piece.stop, len(file.init_times)), len(file.init_times))
    if broken:
        what = (
            f"{num_nan} values of {len(broken)} of {len(found)} forecasts for {lead_hours} h are NaN or infinite: "
            f"those from {_name_times(np.array(broken))}"
        )
        if not skips_nan or not scored:
            raise DataError(f"{file.path}: {what}; --skip-nan leaves these forecasts out")
        said.append(f"{what}; they are left out")
    init_times = np.concatenate(scored)
    names: tuple[BaselineName, ...] = BASELINES
    if not truth.has(init_times).all():
        names = ("climatology", "weekly climatology")
        said.append("persistence is not scored: some of the forecasts start at times that are not in the store")
    scores = score_baselines(baselines, init_times, lead_hours, climatology, names, progress)
    return LeadScores(lead_hours, len(init_times), total.values(), scores, tuple(said))


def _name_times(times: np.ndarray) -> str:
    named = ", ".join(str(time) for time in times[:_MOST_NAMED])
    return named if len(times) <= _MOST_NAMED else f"{named}, ..., {times[-1]}"
