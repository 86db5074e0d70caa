"""Samples with the extreme forecast index in the target, for the scores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from smoe_paper.ens10.data.samples import EnsembleSamples


class ScoredSamples(Dataset[tuple[Tensor, Tensor]]):
    """Samples with the EFI as a fourth channel of the target, NaN for dates that have none.

    All dates are kept, so that the CRPS does not depend on the dates with an EFI.

    Args:
        samples: Samples with a target of truth, mean and spread; their store has an EFI.
    """

    def __init__(self, samples: EnsembleSamples) -> None:
        efi = samples.store.efi
        if efi is None:
            raise ValueError(f"{samples.store.path} has no Extreme Forecast Index")
        self.samples, self.efi = samples, efi
        dates = np.array([samples.date(index) for index in range(len(samples))])
        self._rows = np.searchsorted(samples.store.dates, dates)

    @property
    def num_unknown(self) -> int:
        """Number of samples without an EFI."""
        return sum(bool(np.isnan(self.efi[row]).all()) for row in self._rows)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Returns the input `(C, H, W)` and the target `(4, H, W)`: truth, ensemble mean, ensemble std, EFI."""
        input, target = self.__getitems__([index])
        return input[0], target[0]

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Returns the inputs `(B, C, H, W)` and the targets `(B, 4, H, W)`."""
        input, target = self.samples.__getitems__(indices)
        efi = np.stack([self.efi[self._rows[index]] for index in indices])
        return input, torch.cat([target, torch.from_numpy(efi)[:, None]], dim=1)
