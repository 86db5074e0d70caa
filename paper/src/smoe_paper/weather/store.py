"""The store that weather recipes train on, and its samples: fields at a few past times, and at a lead."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from smoe.errors import DataError, suggest
from smoe_paper.atmosphere.fields import describe_years, years_of
from smoe_paper.atmosphere.store import Store, map_array
from smoe_paper.experiments.task import BatchedSamples

PRECIPITATION = "tp"
PRECIPITATION_EPSILON = 0.001
"""In metres: rain well below it counts as nearly none, and well above it by its logarithm."""

NaNPolicy = Literal["refuse", "zero-tisr"]


def transform(channel: str, values: np.ndarray) -> np.ndarray:
    """Returns what is normalised, float64: `ln(tp + eps) - ln(eps)` for precipitation, else the values themselves."""
    values = values.astype(np.float64)
    if channel != PRECIPITATION:
        return values
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(values + PRECIPITATION_EPSILON) - math.log(PRECIPITATION_EPSILON)


@dataclass(frozen=True)
class WeatherPlan:
    channels: tuple[str, ...]
    constants: tuple[str, ...]
    latitude: tuple[float, ...]
    longitude: tuple[float, ...]
    step_hours: int
    years: tuple[int, int]
    statistics_years: tuple[int, int]
    on_nan: NaNPolicy

    def shapes(self, num_times: int) -> dict[str, tuple[int, ...]]:
        grid = (len(self.latitude), len(self.longitude))
        return {"fields": (num_times, len(self.channels), *grid), "constants": (len(self.constants), *grid)}


class WeatherStore(Store):
    """A store written by `smoe data prepare weather`."""

    format = "smoe weather store"
    plan_type = WeatherPlan
    command = "smoe data prepare weather"

    def __init__(self, path: Path, plan: WeatherPlan, results: dict[str, Any]) -> None:
        super().__init__(path, plan, results)
        self.channels, self.constant_names, self.step_hours = plan.channels, plan.constants, plan.step_hours
        self.mean, self.std = np.array(results["mean"]), np.array(results["std"])
        try:
            self.times = np.load(path / "time.npy", allow_pickle=False)
        except Exception as error:
            raise DataError(f"{path / 'time.npy'} is missing or damaged ({error}): prepare the store again") from error
        shapes = plan.shapes(len(self.times))
        self.fields = map_array(path / "fields.npy", shapes["fields"])
        self.raw_constants = map_array(path / "constants.npy", shapes["constants"])
        """Constants in physical units, float32, `(K, H, W)`."""

    @property
    def valid_times(self) -> np.ndarray:
        return self.times

    @cached_property
    def constants(self) -> np.ndarray:
        """Constants, each normalised by its mean and standard deviation over the grid, float32, `(K, H, W)`."""
        values = self.raw_constants.astype(np.float64)
        return ((values - values.mean((1, 2), keepdims=True)) / values.std((1, 2), keepdims=True)).astype(np.float32)

    def raw_constant(self, name: str) -> np.ndarray:
        """Returns one constant in physical units, `(H, W)`: `lsm` is the share of land, in [0, 1]."""
        return self.raw_constants[self.constant_indices([name])[0]]

    def channel_indices(self, names: Sequence[str]) -> list[int]:
        return [self._find(name, self.channels, "channel") for name in names]

    def constant_indices(self, names: Sequence[str]) -> list[int]:
        return [self._find(name, self.constant_names, "constant") for name in names]

    def to_physical(self, channels: Sequence[str], fields: Any) -> Any:
        """Converts arrays or tensors `(..., C, H, W)` to physical units; precipitation to its logarithm."""
        index = self.channel_indices(channels)
        scales = np.stack([self.std[index], self.mean[index]])[:, :, None, None]
        std, mean = scales if isinstance(fields, np.ndarray) else torch.from_numpy(scales).to(fields)
        return fields * std + mean

    def describe(self) -> str:
        rows, columns = self.grid.shape
        first, last = self.plan.statistics_years
        return (
            f"{self.path}: {len(self.times):,} times in {describe_years(self.years())}, from {self.times[0]} h to "
            f"{self.times[-1]} h, every {self.step_hours} h; {len(self.channels)} channels, {rows} x {columns}\n"
            f"mean and deviation are of {first} to {last}\n"
        )

    def _find(self, name: str, names: tuple[str, ...], kind: str) -> int:
        if name in names:
            return names.index(name)
        raise DataError(f"the store {self.path} has no {kind} {name!r}; {suggest(name, names, otherwise='it has')}")


_HOUR = np.timedelta64(1, "h")
NUM_WEEKS = 52


def week_of_year(times: np.ndarray) -> np.ndarray:
    """The week, from 0 to 51, of each time; the last one of a year has eight or nine days.

    ISO weeks would put the first days of January into the last week of some years.
    """
    day_of_year = (times.astype("datetime64[D]") - times.astype("datetime64[Y]").astype("datetime64[D]")).astype(int)
    return np.minimum(day_of_year // 7, NUM_WEEKS - 1)


def weekly_means(store: WeatherStore, channels: Sequence[str], years: tuple[int, int]) -> np.ndarray:
    """Means of normalised fields over each week of the year, float32, `(52, C, H, W)`."""
    of_year = years_of(store.times)
    rows = np.flatnonzero((of_year >= years[0]) & (of_year <= years[1]))
    weeks, index = week_of_year(store.times[rows]), store.channel_indices(channels)
    if len(np.unique(weeks)) < NUM_WEEKS:
        raise DataError(
            f"weekly_means needs every week of a year, but {store.path} lacks some of {years[0]}-{years[1]}"
        )
    of_weeks = [[store.fields[row][index] for row in rows[weeks == week]] for week in range(NUM_WEEKS)]
    return np.stack([np.mean(fields, axis=0) for fields in of_weeks])


class WeatherSamples(BatchedSamples):
    """Input fields at `t - 12 h`, `t - 6 h` and `t`, and target fields at `t + lead`, all normalised.

    Input channels: the oldest time first; the constants after the last time's fields; last, the `means` of the target's
    week, if there are any. All times of a sample lie in the chosen years; samples for which one of them is not in the
    store are left out.
    """

    def __init__(
        self,
        store: WeatherStore,
        years: tuple[int, int],
        *,
        targets: tuple[str, ...] = ("z_500", "t_850", "t2m"),
        inputs: tuple[str, ...] | None = None,
        constants: tuple[str, ...] | None = None,
        context_hours: tuple[int, ...] = (12, 6, 0),
        lead_hours: int = 72,
        start_every_hours: int | None = None,
        skip_hours: int = 0,
        means: np.ndarray | None = None,
    ) -> None:
        self.store, self.years, self.targets, self.means = store, years, targets, means
        self.inputs = store.channels if inputs is None else inputs
        self.constants = store.constant_names if constants is None else constants
        self.context_hours, self.lead_hours = context_hours, lead_hours
        _check_hours(context_hours, lead_hours, start_every_hours, skip_hours, store.step_hours)
        for name, channels in (("targets", targets), ("inputs", self.inputs)):
            if not channels:
                raise DataError(f"{name} must name at least one channel of the store")
        self._target_index = _as_slice(store.channel_indices(targets))
        self._input_index = _as_slice(store.channel_indices(self.inputs))
        self._constants = store.constants[store.constant_indices(self.constants)]
        # A target in the years of another split would leak into this one.
        begin = np.datetime64(f"{years[0]:04d}", "h") + skip_hours * _HOUR
        usable = store.times[(store.times >= begin) & (years_of(store.times) <= years[1])]
        starts = usable
        if start_every_hours is not None:
            starts = starts[starts.astype(np.int64) % start_every_hours == 0]
        for offset in (*(-hours for hours in context_hours), lead_hours):
            starts = starts[np.isin(starts + offset * _HOUR, usable, assume_unique=True)]
        self.init_times, self.times = starts, starts + lead_hours * _HOUR
        if not len(starts):
            raise DataError(
                f"the years {years[0]} to {years[1]} hold no sample with a context of {max(context_hours)} h and a "
                f"lead of {lead_hours} h: {store.path} has {describe_years(store.years())}; choose other years, or "
                "prepare them"
            )

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the input channels, such as `z_500@-12h`, `lsm`."""
        fields = tuple(f"{name}@{-hours}h" for hours in self.context_hours for name in self.inputs)
        return (*fields, *self.constants, *(() if self.means is None else (f"{name}@week" for name in self.targets)))

    @property
    def num_input_channels(self) -> int:
        return len(self.input_names)

    def __len__(self) -> int:
        return len(self.init_times)

    def shown(self, index: int) -> tuple[str, str, Tensor]:
        """Names a sample by its valid time, and shows the target's field at the start."""
        row, target = self._rows(self.init_times[index]), self.targets[:1]
        field = self.store.fields[row][self.store.channel_indices(target)].astype(np.float64)
        name = f"{target[0]} at {self.init_times[index] + self.lead_hours * _HOUR}:00"
        return name, f"{self.lead_hours} h before", torch.from_numpy(self.store.to_physical(target, field)[0])

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        index = np.asarray(indices, np.int64)
        if index.size and not (index.min() >= 0 and index.max() < len(self)):
            raise IndexError(f"indices must be in [0, {len(self) - 1}], got {index.min()} to {index.max()}")
        starts, fields = self.init_times[index], self.store.fields
        rows = self._rows(starts[:, None] - np.array(self.context_hours) * _HOUR)
        target_rows = self._rows(starts + self.lead_hours * _HOUR)
        num_fields, num_dynamic = len(self.inputs), len(self.context_hours) * len(self.inputs)
        input = np.empty((len(index), self.num_input_channels, *self.store.grid.shape), np.float32)
        target = np.empty((len(index), len(self.targets), *self.store.grid.shape), np.float32)
        for sample in range(len(index)):
            # Row by row: each is contiguous in the file, and nothing is copied twice.
            for place, row in enumerate(rows[sample]):
                input[sample, place * num_fields : (place + 1) * num_fields] = fields[row][self._input_index]
            target[sample] = fields[target_rows[sample]][self._target_index]
        input[:, num_dynamic : num_dynamic + len(self.constants)] = self._constants
        if self.means is not None:
            input[:, -len(self.targets) :] = self.means[week_of_year(starts + self.lead_hours * _HOUR)]
        return torch.from_numpy(input), torch.from_numpy(target)

    def _rows(self, times: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.store.times, times)


def _as_slice(indices: list[int]) -> slice | list[int]:
    # A slice is copied as one contiguous block, a list channel by channel.
    if indices == list(range(indices[0], indices[0] + len(indices))):
        return slice(indices[0], indices[0] + len(indices))
    return indices


def _check_hours(
    context_hours: tuple[int, ...], lead_hours: int, start_every_hours: int | None, skip_hours: int, step_hours: int
) -> None:
    if not context_hours or min(context_hours) < 0 or list(context_hours) != sorted(set(context_hours), reverse=True):
        raise DataError(
            f"context_hours must be hours before the start, the longest first, such as 12 6 0; got {context_hours}"
        )
    every = step_hours if start_every_hours is None else start_every_hours
    if lead_hours < 1 or every < 1 or skip_hours < 0:
        raise DataError(
            f"lead_hours and start_every_hours must be positive, and skip_hours not negative; got {lead_hours}, "
            f"{every} and {skip_hours}"
        )
    odd = [hours for hours in (*context_hours, lead_hours, every) if hours % step_hours]
    if odd:
        raise DataError(
            f"context_hours, lead_hours and start_every_hours must be multiples of the {step_hours} hours between "
            f"steps of the store, got {odd[0]}; or prepare a store with a smaller --step-hours"
        )
