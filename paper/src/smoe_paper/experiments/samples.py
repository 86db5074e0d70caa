"""Samples that are read in whole batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.utils.data import Dataset


class BatchedSamples(Dataset[tuple[Tensor, Tensor]]):
    """Pairs that `__getitems__` returns already stacked, so that a loader must leave them alone.

    `DataLoader(samples, batch_size=32, collate_fn=BatchedSamples.collate)`.
    """

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The inputs and the targets of a batch."""
        raise NotImplementedError

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        input, target = self.__getitems__([index])
        return input[0], target[0]

    @staticmethod
    def collate(batch: Any) -> tuple[Tensor, Tensor]:
        return batch
