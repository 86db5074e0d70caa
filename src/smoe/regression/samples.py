"""Samples of a regressor: normalised inputs and targets of paired times."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from smoe.gridded._alignment import Pairs
from smoe.gridded._tables import FieldTable
from smoe.regression.statistics import Statistics


class GridSamples(Dataset[tuple[Tensor, Tensor]]):
    """Inputs `(C, H, W)` and targets `(K, H, W)`, normalised when they are read; NaN marks targets without a value.

    Args:
        inputs: Fields of the inputs.
        targets: Fields of the targets.
        pairs: Samples.
        statistics: Statistics of the training part.
        lead_channel: Value of a further input channel for each sample, `(N,)`; None: no such channel.
    """

    def __init__(
        self,
        inputs: FieldTable,
        targets: FieldTable,
        pairs: Pairs,
        statistics: Statistics,
        lead_channel: np.ndarray | None = None,
    ) -> None:
        self.inputs, self.targets, self.pairs, self.statistics = inputs, targets, pairs, statistics
        self._input_rows = inputs.rows_of(pairs.inputs)
        self._target_rows = targets.rows_of(pairs.targets)
        self.lead_channel = lead_channel

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        input, target = self.__getitems__([index])
        return input[0], target[0]

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """A batch `(B, C, H, W)` and `(B, K, H, W)`."""
        before, after = self.physical(indices)
        # Targets are relative to inputs in their units: these are normalised in place afterwards.
        target = self.statistics.normalise_targets(after, before, out=after)
        input = self.statistics.normalise_inputs(before, out=before)
        return torch.from_numpy(with_lead(input, self.lead_channel, indices)), torch.from_numpy(target)

    def physical(self, indices: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets in their units, NaN where values are missing."""
        chosen = np.asarray(indices, np.int64)
        return self.inputs.fields(self._input_rows[chosen]), self.targets.fields(self._target_rows[chosen])


def with_lead(inputs: np.ndarray, lead_channel: np.ndarray | None, indices: Sequence[int]) -> np.ndarray:
    """Inputs with one more channel, which holds a number of each sample everywhere."""
    if lead_channel is None:
        return inputs
    values = lead_channel[np.asarray(indices, np.int64)].astype(np.float32)
    plane = np.broadcast_to(values[:, None, None, None], (len(inputs), 1, *inputs.shape[2:]))
    return np.concatenate([inputs, plane], axis=1)


def keep_batch(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Collates nothing: the samples are read as a batch."""
    return batch
