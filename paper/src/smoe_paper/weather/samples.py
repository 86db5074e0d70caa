"""Samples for training: fields at a few past times as input, fields at a lead time as target (Rasp & Thuerey)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from smoe.errors import DataError
from smoe_paper.atmosphere.fields import describe_years, years_of
from smoe_paper.experiments.samples import BatchedSamples
from smoe_paper.weather.store import WeatherStore

_HOUR = np.timedelta64(1, "h")


class WeatherSamples(BatchedSamples):
    """Input fields at `t - 12 h`, `t - 6 h` and `t`, and target fields at `t + lead`, all normalised.

    Input channels: the oldest time first; the constants after the last time's fields. All times of a sample lie in the
    chosen years; samples for which one of them is not in the store are left out.
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
    ) -> None:
        self.store, self.years, self.targets = store, years, targets
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
        self.init_times = starts
        if not len(starts):
            raise DataError(
                f"the years {years[0]} to {years[1]} hold no sample with a context of {max(context_hours)} h and a "
                f"lead of {lead_hours} h: {store.path} has {describe_years(store.years())}; choose other years, or "
                "prepare them"
            )

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the input channels, such as `z_500@-12h`, `lsm`."""
        return tuple(f"{name}@{-hours}h" for hours in self.context_hours for name in self.inputs) + self.constants

    @property
    def num_input_channels(self) -> int:
        return len(self.input_names)

    def __len__(self) -> int:
        return len(self.init_times)

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Returns the inputs `(B, num_input_channels, H, W)` and the targets `(B, len(targets), H, W)`."""
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
        input[:, num_dynamic:] = self._constants
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
