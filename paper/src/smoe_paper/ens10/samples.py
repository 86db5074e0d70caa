"""Samples of an ensemble store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from smoe.errors import DataError
from smoe_paper.atmosphere.store import Rows, describe_years
from smoe_paper.ens10.store import EnsembleStore, NormalisedInputs, years_of


class EnsembleSamples(Dataset[tuple[Tensor, Tensor]]):
    """Normalised statistics of an ensemble, or its members, with the targets of loss and scores in physical units.

    The target stacks the truth and the ensemble's mean and standard deviation of the target variable, which a model
    corrects. Years are those of the valid dates, as in ENS-10: a forecast that started on 31 December belongs to the
    next year.

    Whole batches come from `__getitems__` already stacked, so a loader must leave them alone:
    `DataLoader(samples, batch_size=8, collate_fn=EnsembleSamples.collate)`.

    Args:
        store: Store of the fields.
        years: First and last year.
        inputs: `statistics`: normalised, `(C, H, W)`; `members`: of the target variable in physical units, `(M, H, W)`.
        with_efi: Add the extreme forecast index to the target as a fourth channel, and leave out dates without it.
    """

    def __init__(
        self,
        store: EnsembleStore,
        years: tuple[int, int],
        *,
        inputs: Literal["statistics", "members"] = "statistics",
        with_efi: bool = False,
    ) -> None:
        self.store, self.years, self.with_efi = store, years, with_efi
        if inputs == "members" and store.members is None:
            raise DataError(f"{store.path} was made of statistics and holds no members: prepare it with ensemble/")
        self.inputs = inputs
        valid_years = years_of(store.valid_dates)
        self._rows = np.flatnonzero((valid_years >= years[0]) & (valid_years <= years[1]))
        if with_efi:
            efi = self._efi()
            self._rows = self._rows[[not np.isnan(efi[row][0, 0]) for row in self._rows]]
        if not len(self._rows):
            having = " with an extreme forecast index" if with_efi else ""
            raise DataError(
                f"the years {years[0]} to {years[1]} hold no forecast{having}: {store.path} has "
                f"{describe_years(store.years())}; choose other years, or prepare them"
            )

    @property
    def _inputs(self) -> NormalisedInputs | Rows:
        if self.inputs == "statistics":
            return self.store.inputs
        assert self.store.members is not None
        return self.store.members

    @property
    def num_input_channels(self) -> int:
        """Number of channels of an input."""
        return self._inputs.shape[1]

    def date(self, index: int) -> np.datetime64:
        """Returns the start of a sample's forecast, datetime64[D]."""
        return self.store.dates[int(self._checked([index])[0])]

    def valid_date(self, index: int) -> np.datetime64:
        """Returns the date for which a sample's forecast is valid, datetime64[D]."""
        return self.store.valid_dates[int(self._checked([index])[0])]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Returns the input `(C, H, W)` and the target `(3, H, W)`: truth, ensemble mean, ensemble std."""
        input, target = self.__getitems__([index])
        return input[0], target[0]

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Returns the inputs `(B, C, H, W)` and the targets `(B, 3, H, W)`."""
        rows = self._checked(indices)
        input = np.empty((len(rows), *self._inputs.shape[1:]), np.float32)
        target = np.empty((len(rows), 3 + self.with_efi, *self.store.grid.shape), np.float32)
        for place, row in enumerate(rows):
            input[place] = self._inputs[row]
            target[place, 0] = self.store.truth[row]
            target[place, 1] = self.store.target_mean[row]
            target[place, 2] = self.store.target_std[row]
            if self.with_efi:
                target[place, 3] = self._efi()[row]
        return torch.from_numpy(input), torch.from_numpy(target)

    @staticmethod
    def collate(batch: Any) -> tuple[Tensor, Tensor]:
        """Returns the batch as it is: `__getitems__` has stacked it, and torch's default would stack it again."""
        return batch

    def _efi(self) -> Rows:
        if self.store.efi is None:
            raise DataError(f"{self.store.path} has no extreme forecast index; prepare it with ensemble/ or efi_*.nc")
        return self.store.efi

    def _checked(self, indices: Sequence[int]) -> np.ndarray:
        index = np.asarray(indices, np.int64)
        if index.size and not (index.min() >= 0 and index.max() < len(self._rows)):
            wrong = index.min() if index.min() < 0 else index.max()
            raise IndexError(f"index must be in [0, {len(self._rows) - 1}], got {wrong}")
        return self._rows[index]
