"""Samples of an ensemble store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from smoe.errors import DataError
from smoe_paper.atmosphere.store import describe_years
from smoe_paper.ens10.store import EnsembleStore, years_of


class EnsembleSamples(Dataset[tuple[Tensor, Tensor]]):
    """Normalised statistics of an ensemble, or its members, with the targets of loss and scores in physical units.

    The target stacks the truth, the ensemble's mean and standard deviation of the target variable, which a model
    corrects, and, if the store has it, the extreme forecast index, NaN for dates that have none. Years are those of the
    valid dates, as in ENS-10: a forecast that started on 31 December belongs to the next year.

    Whole batches come from `__getitems__` already stacked, so a loader must leave them alone:
    `DataLoader(samples, batch_size=8, collate_fn=EnsembleSamples.collate)`.
    """

    def __init__(
        self, store: EnsembleStore, years: tuple[int, int], *, inputs: Literal["statistics", "members"] = "statistics"
    ) -> None:
        self.store, self.years, self.inputs = store, years, inputs
        if inputs == "members" and store.members is None:
            raise DataError(f"{store.path} was made of statistics and holds no members: prepare it with ensemble/")
        valid_years = years_of(store.valid_dates)
        self._rows = np.flatnonzero((valid_years >= years[0]) & (valid_years <= years[1]))
        if not len(self._rows):
            raise DataError(
                f"the years {years[0]} to {years[1]} hold no forecast: {store.path} has "
                f"{describe_years(store.years())}; choose other years, or prepare them"
            )

    @property
    def num_without_efi(self) -> int:
        efi = self.store.efi
        return 0 if efi is None else sum(bool(np.isnan(efi[int(row)]).all()) for row in self._rows)

    def date(self, index: int) -> np.datetime64:
        """Returns the start of a sample's forecast, datetime64[D]."""
        return self.store.dates[int(self._checked([index])[0])]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        input, target = self.__getitems__([index])
        return input[0], target[0]

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Returns the inputs `(B, C, H, W)` and the targets `(B, 3 or 4, H, W)`."""
        rows, store = self._checked(indices), self.store
        fields = store.inputs if self.inputs == "statistics" else store.members
        assert fields is not None
        targets = [store.truth, store.target_mean, store.target_std, *([] if store.efi is None else [store.efi])]
        input = np.empty((len(rows), *fields.shape[1:]), np.float32)
        target = np.empty((len(rows), len(targets), *store.grid.shape), np.float32)
        for place, row in enumerate(rows):
            input[place] = fields[row]
            for number, values in enumerate(targets):
                target[place, number] = values[row]
        return torch.from_numpy(input), torch.from_numpy(target)

    @staticmethod
    def collate(batch: Any) -> tuple[Tensor, Tensor]:
        """Returns the batch as it is: `__getitems__` has stacked it, and torch's default would stack it again."""
        return batch

    def _checked(self, indices: Sequence[int]) -> np.ndarray:
        index = np.asarray(indices, np.int64)
        if index.size and not (index.min() >= 0 and index.max() < len(self._rows)):
            wrong = index.min() if index.min() < 0 else index.max()
            raise IndexError(f"index must be in [0, {len(self._rows) - 1}], got {wrong}")
        return self._rows[index]
