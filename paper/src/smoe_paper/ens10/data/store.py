"""The store that training reads: normalised fields in memory-mapped files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from smoe._integrity import read_checked_json, write_checked_json
from smoe.errors import DataError
from smoe_paper.atmosphere.grid import Grid
from smoe_paper.atmosphere.stores import DTYPE, crc32_of_rows
from smoe_paper.ens10.data.variables import LEAD_DAYS, NUM_MEMBERS, TASKS, TaskName

OFFSET = 0.1

_FIELDS_PER_PIECE = 16


def point_statistics(open_fields: Callable[[], np.ndarray], rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns mean and population standard deviation over time at each point, float32, `(H, W)` each.

    Missing values are ignored; a point without values gets the mean 0 and the standard deviation 0.

    Args:
        open_fields: Maps the fields `(T, H, W)`; called for a few of them at a time, so that few pages stay in memory.
        rows: Indices of the fields.
    """
    shape = open_fields().shape[1:]
    count, mean, squares = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    for first in range(0, len(rows), _FIELDS_PER_PIECE):
        piece = np.asarray(open_fields()[rows[first : first + _FIELDS_PER_PIECE]], np.float64)
        is_there = ~np.isnan(piece)
        number = is_there.sum(axis=0)
        piece_mean = np.where(is_there, piece, 0.0).sum(axis=0) / np.maximum(number, 1)
        piece_squares = np.where(is_there, np.square(piece - piece_mean), 0.0).sum(axis=0)
        # Chan's update: a plain sum of squares would lose the digits in which geopotential varies.
        total = np.maximum(count + number, 1)
        distance = piece_mean - mean
        squares += piece_squares + np.square(distance) * count * number / total
        mean += distance * number / total
        count += number
    return mean.astype(np.float32), np.sqrt(squares / np.maximum(count, 1)).astype(np.float32)


def normalise(values: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Returns normalised values, float32; missing values become the mean, 0: sea surface temperature over land."""
    return np.nan_to_num((values - mean) / (std + np.float32(OFFSET)), nan=0.0)


FORMAT = "smoe ensemble store"
VERSION = 1
METADATA_FILE = "store.json"
PREPARATION_FILE = "preparation.json"
STATISTICS, TRUTH, MEMBERS, EFI, NORMALISATION = (
    f"{name}.f32" for name in ("statistics", "truth", "members", "efi", "normalisation")
)
OUR_FILES = frozenset({METADATA_FILE, PREPARATION_FILE, STATISTICS, TRUTH, MEMBERS, EFI, NORMALISATION})

StatisticsYears = Literal["training", "released"]
EfiOrigin = Literal["file", "computed"]


@dataclass(frozen=True)
class Plan:
    """Contents of a store, known before a field is read.

    Attributes:
        task: Task that selects the fields.
        num_members: Number of members in the statistics.
        starts: Start dates of the forecasts, such as `1998-01-01`.
        latitude: Latitudes from north to south.
        longitude: Longitudes from 0 eastwards.
        has_members: Whether all ten members of the target are stored.
        efi: Origin of the extreme forecast index; None if there is no index.
        efi_years: First and last start year of the computed index.
        train_years: First and last year of training, by the date for which a forecast is valid.
        normalisation: `training` for statistics of the training years, `released` for statistics of all dates.
    """

    task: TaskName
    num_members: int
    starts: tuple[str, ...]
    latitude: tuple[float, ...]
    longitude: tuple[float, ...]
    has_members: bool
    efi: EfiOrigin | None
    efi_years: tuple[int, int]
    train_years: tuple[int, int]
    normalisation: StatisticsYears

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the files."""
        grid = (len(self.latitude), len(self.longitude))
        num_starts, num_channels = len(self.starts), len(TASKS[self.task].channels)
        shapes = {STATISTICS: (num_starts, num_channels, *grid), TRUTH: (num_starts, *grid)}
        if self.has_members:
            shapes[MEMBERS] = (num_starts, NUM_MEMBERS, *grid)
        if self.efi is not None:
            shapes[EFI] = (num_starts, *grid)
        shapes[NORMALISATION] = (2, num_channels, *grid)
        return shapes

    def num_bytes(self, name: str) -> int:
        """Returns the size of a file."""
        size = DTYPE.itemsize
        for length in self.shapes[name]:
            size *= length
        return size

    def to_plain(self) -> dict[str, Any]:
        """Returns the plan as plain values."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Plan:
        """Inverts `to_plain`, after JSON."""
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in plain.items()
        }
        return cls(**values)


@dataclass(frozen=True)
class Metadata:
    """Contents of `store.json`.

    Attributes:
        plan: Contents of the store.
        crc32: Checksums of the entries along the first dimension of each file.
        kind: Kind of the source.
        notices: Corrections made by the reader, and other messages.
    """

    plan: Plan
    crc32: dict[str, list[int]]
    kind: str
    notices: tuple[str, ...]

    def write(self, folder: Path) -> None:
        """Writes `store.json` atomically."""
        write_checked_json(folder / METADATA_FILE, asdict(self), FORMAT, VERSION)

    @classmethod
    def read(cls, folder: Path) -> Metadata:
        """Reads `store.json`.

        Raises:
            DataError: If it is missing, of another format or version, or changed.
        """
        content = read_checked_json(folder / METADATA_FILE, FORMAT, VERSION)
        try:
            plan = Plan.from_plain(content["plan"])
            return cls(plan, content["crc32"], content["kind"], tuple(content["notices"]))
        except (TypeError, KeyError) as error:
            raise DataError(f"{folder / METADATA_FILE} lacks what version {VERSION} holds ({error})") from error


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
