"""The store that ENS-10's recipes train on, and its samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from smoe.errors import DataError
from smoe_paper.atmosphere.fields import describe_years, years_of
from smoe_paper.atmosphere.store import Store, map_array
from smoe_paper.ens10.source import LEAD_DAYS, NUM_MEMBERS, TASKS, TaskName
from smoe_paper.experiments.task import BatchedSamples

# Of the release: keeps a point whose statistics hardly vary from exploding.
OFFSET = 0.1


@dataclass(frozen=True)
class EnsemblePlan:
    """Contents of a store, known before a field is read."""

    task: TaskName
    num_members: int
    starts: tuple[str, ...]
    latitude: tuple[float, ...]
    longitude: tuple[float, ...]
    has_efi: bool
    train_years: tuple[int, int]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        grid = (len(self.latitude), len(self.longitude))
        num_starts, num_channels = len(self.starts), len(TASKS[self.task].channels)
        shapes = {"statistics": (num_starts, num_channels, *grid), "truth": (num_starts, *grid)}
        shapes |= {"members": (num_starts, NUM_MEMBERS, *grid)}
        shapes |= {"efi": (num_starts, *grid)} if self.has_efi else {}
        return shapes | {"normalisation": (2, num_channels, *grid)}


class NormalisedInputs:
    """Rows `(C, H, W)` of statistics, normalised at each point when they are read, which takes a few milliseconds.

    The store keeps physical values, which also give the ensemble's own mean and spread. Missing values become the mean,
    0: sea surface temperature over land.
    """

    def __init__(self, statistics: np.ndarray, mean: np.ndarray, std: np.ndarray) -> None:
        self._statistics, self._mean, self._std = statistics, mean, std
        self.shape = statistics.shape

    def __getitem__(self, row: int) -> np.ndarray:
        return np.nan_to_num((self._statistics[row] - self._mean) / (self._std + np.float32(OFFSET)), nan=0.0)


class EnsembleStore(Store):
    """A store written by `smoe data prepare ens10`.

    Rows run from north to south, as in ENS-10 and unlike in a `WeatherStore`; columns from 0 eastwards.
    """

    format = "smoe ensemble store"
    plan_type = EnsemblePlan
    command = "smoe data prepare ens10"

    def __init__(self, path: Path, plan: EnsemblePlan, results: dict[str, Any]) -> None:
        super().__init__(path, plan, results)
        task = TASKS[plan.task]
        self.task: TaskName = plan.task
        self.num_members, self.channels, self.train_years = plan.num_members, task.channels, plan.train_years
        self.dates = np.array(plan.starts, "datetime64[D]")
        arrays = {name: map_array(path / f"{name}.npy", shape) for name, shape in plan.shapes.items()}
        statistics = arrays["statistics"]
        self.inputs = NormalisedInputs(statistics, *arrays["normalisation"])
        self.target_mean, self.target_std = (statistics[:, 2 * task.target_index + place] for place in (0, 1))
        self.truth, self.efi = arrays["truth"], arrays.get("efi")
        self.members = arrays["members"][:, : plan.num_members]

    @property
    def valid_times(self) -> np.ndarray:
        return self.dates + np.timedelta64(LEAD_DAYS, "D")

    def describe(self) -> str:
        plan, (rows, columns), (first, last) = self.plan, self.grid.shape, self.train_years
        efi = "known" if plan.has_efi else "none"
        return (
            f"{self.path}: {self.task}, {len(self.dates):,} forecasts, started {self.dates[0]} to {self.dates[-1]}; "
            f"{len(self.channels)} channels, {rows} x {columns}\n"
            f"mean and population standard deviation of {self.num_members} members, normalised by statistics of "
            f"the training years {first} to {last}; extreme forecast index: {efi}\n"
        )


class EnsembleSamples(BatchedSamples):
    """Normalised statistics of an ensemble, or its members, with the targets of loss and scores in physical units.

    The target stacks the truth, the ensemble's mean and standard deviation of the target variable, which a model
    corrects, and, if the store has it, the extreme forecast index, NaN for dates that have none. Years are those of the
    valid dates, as in ENS-10: a forecast that started on 31 December belongs to the next year.
    """

    def __init__(
        self, store: EnsembleStore, years: tuple[int, int], *, inputs: Literal["statistics", "members"] = "statistics"
    ) -> None:
        self.store, self.years, self.inputs = store, years, inputs
        valid_years = years_of(store.valid_times)
        self._rows = np.flatnonzero((valid_years >= years[0]) & (valid_years <= years[1]))
        self.times = store.valid_times[self._rows]
        if not len(self._rows):
            raise DataError(
                f"the years {years[0]} to {years[1]} hold no forecast: {store.path} has "
                f"{describe_years(store.years())}; choose other years, or prepare them"
            )

    @property
    def num_without_efi(self) -> int:
        efi = self.store.efi
        return 0 if efi is None else sum(bool(np.isnan(efi[int(row)]).all()) for row in self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def shown(self, index: int) -> tuple[str, str, Tensor]:
        time = self.store.valid_times[self._rows[index]]
        return f"{self.store.task} at {time}", "mean of the ensemble", self[index][1][1]

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        rows, store = self._rows[np.asarray(indices, np.int64)], self.store
        fields = store.inputs if self.inputs == "statistics" else store.members
        targets = [store.truth, store.target_mean, store.target_std, *([] if store.efi is None else [store.efi])]
        input = np.stack([fields[row] for row in rows]).astype(np.float32)
        target = np.stack([[values[row] for values in targets] for row in rows]).astype(np.float32)
        return torch.from_numpy(input), torch.from_numpy(target)
