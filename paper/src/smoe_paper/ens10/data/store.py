"""The store for training on ENS-10: ensemble statistics, truth, members and index in memory-mapped files."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from smoe._integrity import read_checked_json
from smoe.errors import DataError
from smoe.gridded.field_files import DTYPE, crc32_of_rows
from smoe.gridded.grid import Grid
from smoe_paper.ens10.data.normalisation import normalise
from smoe_paper.ens10.data.store_format import (
    EFI,
    FORMAT,
    MEMBERS,
    METADATA_FILE,
    NORMALISATION,
    PREPARATION_FILE,
    STATISTICS,
    TRUTH,
    VERSION,
    Metadata,
)
from smoe_paper.ens10.data.variables import LEAD_DAYS, TASKS


class NormalisedInputs:
    """Behaves like an array `(T, C, H, W)` whose values are normalised at each point when they are read, float32.

    The store keeps physical values, which also give the ensemble's own mean and spread. Normalising a sample takes a
    few milliseconds.
    """

    def __init__(self, statistics: np.ndarray, mean: np.ndarray, std: np.ndarray) -> None:
        self._statistics, self._mean, self._std = statistics, mean, std
        self.shape = statistics.shape
        self.dtype = statistics.dtype

    def __len__(self) -> int:
        return len(self._statistics)

    def __getitem__(self, index: int | slice | list[int] | np.ndarray) -> np.ndarray:
        return normalise(self._statistics[index], self._mean, self._std)


class EnsembleStore:
    """A store written by `smoe data prepare ens10`. Open it with `EnsembleStore.open`.

    Rows run from north to south, as in ENS-10 and unlike in a `WeatherStore`; columns from 0 eastwards.

    Attributes:
        path: Folder of the store.
        task: `z500`, `t850` or `t2m`.
        num_members: Number of members in mean and standard deviation, 5 or 10.
        channels: Channels of the input, such as `Z_mean`, `Z_std`, `T_mean`.
        grid: Grid with latitudes from north to south.
        dates: Start dates, datetime64[D], `(T,)`, ascending.
        valid_dates: Dates for which the forecasts are valid, 48 hours later.
        train_years: First and last year of training, by the valid dates.
        metadata: Metadata of the preparation.
    """

    def __init__(self, path: Path, metadata: Metadata) -> None:
        self.path, self.metadata = path, metadata
        plan = metadata.plan
        self.task, self.num_members = plan.task, plan.num_members
        self.channels = TASKS[plan.task].channels
        self.grid = Grid(plan.latitude, plan.longitude)
        self.dates = np.array(plan.starts, "datetime64[D]")
        self.valid_dates = self.dates + np.timedelta64(LEAD_DAYS, "D")
        self.train_years = plan.train_years
        self._target = 2 * TASKS[plan.task].target_index

    @classmethod
    def open(cls, path: str | Path) -> EnsembleStore:
        """Opens a store after checking its metadata and the sizes of its files.

        Raises:
            DataError: If it is missing, unfinished, of another format or version, or damaged.
        """
        path = Path(path)
        if not (path / METADATA_FILE).is_file():
            if (path / PREPARATION_FILE).is_file():
                state = read_checked_json(path / PREPARATION_FILE, FORMAT, VERSION)
                raise DataError(
                    f"the preparation of the store {path} is not finished: {len(state['rows'])} of "
                    f"{len(state['plan']['starts'])} forecasts are written; run the same command again to resume"
                )
            raise DataError(
                f"there is no ensemble store in {path} (no {METADATA_FILE}); make one with "
                f"smoe data prepare ens10 --root DATA --output {path} --task TASK (z500, t850 or t2m)"
            )
        metadata = Metadata.read(path)
        for name in metadata.plan.shapes:
            file, expected = path / name, metadata.plan.num_bytes(name)
            actual = file.stat().st_size if file.is_file() else None
            if actual != expected:
                found = "is missing" if actual is None else f"has {actual:,} bytes"
                raise DataError(
                    f"{file} {found}, but {expected:,} are needed: delete the store and run smoe data prepare again"
                )
        return cls(path, metadata)

    @cached_property
    def statistics(self) -> np.ndarray:
        """Mean and standard deviation of each variable in physical units, `(T, C, H, W)`, mapped; NaN over land."""
        return self._map(STATISTICS)

    @cached_property
    def inputs(self) -> NormalisedInputs:
        """Statistics, normalised when they are read, `(T, C, H, W)`."""
        mean, std = np.array(self._map(NORMALISATION))
        return NormalisedInputs(self.statistics, mean, std)

    @property
    def target_mean(self) -> np.ndarray:
        """Ensemble mean of the target variable in physical units, `(T, H, W)`, mapped."""
        return self.statistics[:, self._target]

    @property
    def target_std(self) -> np.ndarray:
        """Population standard deviation of the target variable over the members, `(T, H, W)`, mapped."""
        return self.statistics[:, self._target + 1]

    @cached_property
    def truth(self) -> np.ndarray:
        """ERA5 at the valid dates in physical units, `(T, H, W)`, mapped."""
        return self._map(TRUTH)

    @cached_property
    def members(self) -> np.ndarray | None:
        """The first `num_members` members of the target variable in physical units, `(T, M, H, W)`, mapped, or None."""
        return self._map(MEMBERS)[:, : self.num_members] if self.metadata.plan.has_members else None

    @cached_property
    def efi(self) -> np.ndarray | None:
        """Extreme forecast index, `(T, H, W)`, mapped, or None; NaN for dates without an index."""
        return self._map(EFI) if self.metadata.plan.efi is not None else None

    def years(self) -> tuple[int, ...]:
        """Returns the years of the valid dates."""
        return tuple(sorted({int(str(date)[:4]) for date in self.valid_dates}))

    def verify(self) -> Iterator[str]:
        """Reads all files and compares them with the checksums taken when they were written.

        Yields:
            Name of each unchanged file.

        Raises:
            DataError: If the bytes of a file have changed.
        """
        for name, shape in self.metadata.plan.shapes.items():
            num_bytes = self.metadata.plan.num_bytes(name) // shape[0]
            for row, expected in enumerate(self.metadata.crc32[name]):
                if crc32_of_rows(self.path / name, row * num_bytes, num_bytes) != expected:
                    raise DataError(
                        f"{self.path / name}: entry {row} is not as it was written: delete the store and run "
                        "smoe data prepare again"
                    )
            yield name

    def _map(self, name: str) -> np.ndarray:
        return np.memmap(self.path / name, DTYPE, "r", shape=self.metadata.plan.shapes[name])

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "metadata": self.metadata}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)
