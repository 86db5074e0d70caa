"""Protocol of a data set of ensemble forecasts: mean and spread of all fields, and members, for each start."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from smoe_paper.atmosphere.grid import Grid
from smoe_paper.ens10.data.variables import EnsembleTask


@dataclass(frozen=True)
class Block:
    """Forecasts that are read together, from one file or a few neighbouring dates."""

    name: str
    starts: np.ndarray


@dataclass(frozen=True)
class Forecast:
    """One ensemble forecast.

    Attributes:
        start: Start date, datetime64[D].
        statistics: Mean and population standard deviation of each variable, alternating, float32, `(2 V, H, W)`.
        members: All members of the target variable, float32, `(10, H, W)`; None if the files hold statistics only.
    """

    start: np.datetime64
    statistics: np.ndarray
    members: np.ndarray | None


class EnsembleSource(ABC):
    """A source of forecasts, which checks everything that it reads.

    Attributes:
        kind: `preprocessed` or `members`.
        task: Task that selects the fields.
        num_members: Number of members in the statistics.
        grid: Grid of the fields, from north to south.
        starts: Start dates of the forecasts, datetime64[D], `(T,)`, ascending.
        has_members: Whether forecasts have members.
        notices: Descriptions of corrections.
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
        """Returns all forecasts in blocks, the same each time."""

    @abstractmethod
    def read(self, block: Block) -> Iterator[Forecast]:
        """Yields the forecasts of a block.

        Raises:
            DataError: If something is missing, truncated, damaged, misdated, or implausible.
        """

    @abstractmethod
    def close(self) -> None:
        """Closes the files."""

    def __enter__(self) -> EnsembleSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
