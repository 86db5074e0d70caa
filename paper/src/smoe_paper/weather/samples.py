"""Samples for training: fields at a few past times as input, fields at a lead time as target (Rasp & Thuerey)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from smoe.errors import DataError
from smoe_paper.atmosphere.store import describe_years
from smoe_paper.weather.store import WeatherStore

LEAD_CHANNEL = "lead_hours/100"

_HOUR = np.timedelta64(1, "h")


class WeatherSamples(Dataset[tuple[Tensor, Tensor]]):
    """Input fields at `t - 12 h`, `t - 6 h` and `t`, and target fields at `t + lead`, all normalised.

    Input channels: the oldest time first; the constants after the last time's fields; with a range of lead times, one
    more channel that is `lead_hours / 100` everywhere. All times of a sample lie in the chosen years; samples for
    which one of them is not in the store are left out. With a range, a lead is drawn for each sample, anew in each
    epoch (`start_epoch`), and a sample needs the targets of all leads of the range.

    Whole batches come from `__getitems__` already stacked, so a loader must leave them alone:
    `DataLoader(samples, batch_size=32, collate_fn=WeatherSamples.collate)`.
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
        lead_hours: int | tuple[int, int] = 72,
        start_every_hours: int | None = None,
        skip_hours: int = 0,
        seed: int = 0,
        fixed_lead: int | None = None,
    ) -> None:
        self.store = store
        self.years = years
        self.targets = targets
        self.inputs = store.channels if inputs is None else inputs
        self.constants = store.constant_names if constants is None else constants
        self.context_hours = context_hours
        self.is_continuous = not isinstance(lead_hours, int)
        self.lead_hours = lead_hours
        self.fixed_lead = fixed_lead if self.is_continuous else None
        self.seed = seed
        self.epoch = 0
        if fixed_lead is not None and not self.is_continuous:
            raise DataError(f"fixed_lead is for a range of leads; lead_hours is {lead_hours} for all samples already")
        _check_hours(context_hours, lead_hours, fixed_lead, start_every_hours, skip_hours, store.step_hours)
        for name, channels in (("targets", targets), ("inputs", self.inputs)):
            if not channels:
                raise DataError(f"{name} must name at least one channel of the store")
        self._target_index = _as_slice(store.channel_indices(targets))
        self._input_index = _as_slice(store.channel_indices(self.inputs))
        self._constant_index = store.constant_indices(self.constants)
        self._hours = (store.times - np.datetime64(0, "h")) // _HOUR
        offsets = (*(-hours for hours in context_hours), *self.leads)
        self._starts = _find_starts(self._hours, years, offsets, start_every_hours, skip_hours)
        if not len(self._starts):
            raise DataError(
                f"the years {years[0]} to {years[1]} hold no sample with a context of {max(context_hours)} h and a "
                f"lead of {max(self.leads)} h: {store.path} has {describe_years(store.years())}; choose other years, "
                "or prepare them"
            )

    @property
    def leads(self) -> tuple[int, ...]:
        """Lead times, in hours, that a sample may have."""
        if self.fixed_lead is not None:
            return (self.fixed_lead,)
        if isinstance(self.lead_hours, int):
            return (self.lead_hours,)
        smallest, largest = self.lead_hours
        return tuple(range(smallest, largest + 1, self.store.step_hours))

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the input channels, such as `z_500@-12h`, `lsm`."""
        fields = tuple(f"{name}@{-hours}h" for hours in self.context_hours for name in self.inputs)
        return fields + self.constants + ((LEAD_CHANNEL,) if self.is_continuous else ())

    @property
    def num_input_channels(self) -> int:
        return len(self.context_hours) * len(self.inputs) + len(self.constants) + self.is_continuous

    @property
    def missing_years(self) -> tuple[int, ...]:
        """Requested years that are not in the store."""
        present = self.store.years()
        return tuple(year for year in range(self.years[0], self.years[1] + 1) if year not in present)

    def start_epoch(self, epoch: int) -> None:
        """Draws the leads of an epoch: they depend on the seed, the epoch and the sample's index only."""
        self.epoch = epoch
        self.__dict__.pop("_drawn_leads", None)

    @property
    def init_times(self) -> np.ndarray:
        """Times `t` of all samples, datetime64[h]."""
        return self._starts.astype("datetime64[h]")

    def init_time(self, index: int) -> np.datetime64:
        return np.datetime64(int(self._starts[self._checked([index])[0]]), "h")

    def valid_time(self, index: int) -> np.datetime64:
        return self.init_time(index) + int(self._lead_of(self._checked([index]))[0]) * _HOUR

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Returns the input `(num_input_channels, H, W)` and the target `(len(targets), H, W)`."""
        input, target = self.__getitems__([index])
        return input[0], target[0]

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Returns the inputs `(B, num_input_channels, H, W)` and the targets `(B, len(targets), H, W)`."""
        index = self._checked(indices)
        starts, leads = self._starts[index], self._lead_of(index)
        rows = self._rows(starts[:, None] - np.array(self.context_hours))
        target_rows = self._rows(starts + leads)
        fields, (height, width) = self.store.fields, self.store.grid.shape
        num_fields, num_contexts = len(self.inputs), len(self.context_hours)
        num_dynamic = num_contexts * num_fields
        input = np.empty((len(index), self.num_input_channels, height, width), np.float32)
        target = np.empty((len(index), len(self.targets), height, width), np.float32)
        for sample in range(len(index)):
            # Row by row: each is contiguous in the file, and nothing is copied twice.
            for context in range(num_contexts):
                first = context * num_fields
                input[sample, first : first + num_fields] = fields[rows[sample, context]][self._input_index]
            target[sample] = fields[target_rows[sample]][self._target_index]
        input[:, num_dynamic : num_dynamic + len(self.constants)] = self._constants
        if self.is_continuous:
            input[:, -1] = (leads / 100.0)[:, None, None]
        return torch.from_numpy(input), torch.from_numpy(target)

    @staticmethod
    def collate(batch: Any) -> tuple[Tensor, Tensor]:
        """Returns the batch as it is: `__getitems__` has stacked it, and torch's default would stack it again."""
        return batch

    @cached_property
    def _constants(self) -> np.ndarray:
        return self.store.constants[self._constant_index]

    @cached_property
    def _drawn_leads(self) -> np.ndarray:
        leads = np.array(self.leads)
        return leads[np.random.default_rng((self.seed, self.epoch)).integers(len(leads), size=len(self._starts))]

    def _lead_of(self, index: np.ndarray) -> np.ndarray:
        if len(self.leads) == 1:
            return np.full(len(index), self.leads[0])
        return self._drawn_leads[index]

    def _checked(self, indices: Sequence[int]) -> np.ndarray:
        index = np.asarray(indices, np.int64)
        if index.size and not (index.min() >= 0 and index.max() < len(self._starts)):
            wrong = index.min() if index.min() < 0 else index.max()
            raise IndexError(f"index must be in [0, {len(self._starts) - 1}], got {wrong}")
        return index

    def _rows(self, hours: np.ndarray) -> np.ndarray:
        return np.searchsorted(self._hours, hours)


def _as_slice(indices: list[int]) -> slice | list[int]:
    # A slice is copied as one contiguous block, a list channel by channel.
    if indices == list(range(indices[0], indices[0] + len(indices))):
        return slice(indices[0], indices[0] + len(indices))
    return indices


def _check_hours(
    context_hours: tuple[int, ...],
    lead_hours: int | tuple[int, int],
    fixed_lead: int | None,
    start_every_hours: int | None,
    skip_hours: int,
    step_hours: int,
) -> None:
    if not context_hours or min(context_hours) < 0 or list(context_hours) != sorted(set(context_hours), reverse=True):
        raise DataError(
            f"context_hours must be hours before the start, the longest first, such as 12 6 0; got {context_hours}"
        )
    if not isinstance(lead_hours, int) and lead_hours[0] > lead_hours[1]:
        raise DataError(f"a range of lead_hours goes from the smallest to the largest, got {lead_hours}")
    leads = (lead_hours,) if isinstance(lead_hours, int) else lead_hours
    leads = leads if fixed_lead is None else (*leads, fixed_lead)
    if min(leads) < 1:
        raise DataError(f"lead_hours must be positive, got {min(leads)}")
    if start_every_hours is not None and start_every_hours < 1:
        raise DataError(f"start_every_hours must be positive, got {start_every_hours}")
    if skip_hours < 0:
        raise DataError(f"skip_hours must not be negative, got {skip_hours}")
    every = () if start_every_hours is None else (start_every_hours,)
    for name, values in (("context_hours", context_hours), ("lead_hours", leads), ("start_every_hours", every)):
        for hours in values:
            if hours % step_hours:
                raise DataError(
                    f"{name} {hours} is not a multiple of the {step_hours} hours between steps of the store: choose "
                    f"a multiple of {step_hours}, or prepare a store with a smaller --step-hours"
                )


def _find_starts(
    hours: np.ndarray, years: tuple[int, int], offsets: tuple[int, ...], every_hours: int | None, skip_hours: int
) -> np.ndarray:
    # Start times, in hours since 1970, for which the times at all offsets are there and in the years.
    begin = _new_year(years[0]) + skip_hours
    # A target in the years of another split would leak into this one.
    usable = hours[(hours >= begin) & (hours < _new_year(years[1] + 1))]
    starts = usable if every_hours is None else usable[usable % every_hours == 0]
    for offset in offsets:
        starts = starts[np.isin(starts + offset, usable, assume_unique=True)]
    return starts


def _new_year(year: int) -> int:
    return int(np.datetime64(f"{year:04d}-01-01", "h").astype(np.int64))
