"""A data set of ensemble forecasts, whichever its files: for each start, mean and spread of all fields, and members."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from smoe.gridded.grid import Grid
from smoe.paper.ens10.data.variables import EnsembleTask


@dataclass(frozen=True)
class Block:
    """Forecasts that are read together, from one file or a few neighbouring dates."""

    name: str
    starts: np.ndarray


@dataclass(frozen=True)
class Forecast:
    """One ensemble forecast.

    Attributes:
        start: datetime64[D].
        statistics: mean and population standard deviation of each variable side by side, float32, `(2 V, H, W)`.
        members: all members of the target variable, float32, `(10, H, W)`; None if the files hold statistics only.
    """

    start: np.datetime64
    statistics: np.ndarray
    members: np.ndarray | None


class EnsembleSource(ABC):
    """Where forecasts are read from; everything that is read is checked.

    Attributes:
        kind: `preprocessed` or `members`.
        task: which fields.
        num_members: that the statistics are of.
        grid: north to south.
        starts: of the forecasts, datetime64[D], `(T,)`, ascending.
        has_members: whether forecasts have members.
        notices: what was put right.
    """

    kind: str
    task: EnsembleTask
    num_members: int
    grid: Grid
    starts: np.ndarray
    has_members: bool
    notices: list[str]

    @abstractmethod
    def blocks(self) -> list[Block]:
        """All forecasts, in blocks; the same each time."""

    @abstractmethod
    def read(self, block: Block) -> Iterator[Forecast]:
        """The forecasts of a block, one after the other.

        Raises:
            DataError: for what is missing, truncated, damaged, misdated, or no weather.
        """

    @abstractmethod
    def close(self) -> None:
        """Closes the files."""

    def __enter__(self) -> EnsembleSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
