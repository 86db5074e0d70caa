"""The store that ENS-10's recipes train on, and its samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from smoe.errors import DataError
from smoe_paper.atmosphere.axes import Grid
from smoe_paper.atmosphere.store import DTYPE, Rows, checksum, read_metadata, restore
from smoe_paper.ens10.variables import LEAD_DAYS, NUM_MEMBERS, TASKS, TaskName

if TYPE_CHECKING:
    Fields = np.ndarray | Rows

FORMAT = "smoe ensemble store"
STATISTICS, TRUTH, MEMBERS, EFI, NORMALISATION = "statistics", "truth", "members", "efi", "normalisation"
# Of the release: keeps a point whose statistics hardly vary from exploding.
OFFSET = 0.1
_FIELDS_PER_PIECE = 16

StatisticsYears = Literal["training", "released"]
EfiOrigin = Literal["file", "computed"]


@dataclass(frozen=True)
class Plan:
    """Contents of a store, known before a field is read."""

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
        grid = (len(self.latitude), len(self.longitude))
        num_starts, num_channels = len(self.starts), len(TASKS[self.task].channels)
        shapes = {STATISTICS: (num_starts, num_channels, *grid), TRUTH: (num_starts, *grid)}
        if self.has_members:
            shapes[MEMBERS] = (num_starts, NUM_MEMBERS, *grid)
        if self.efi is not None:
            shapes[EFI] = (num_starts, *grid)
        shapes[NORMALISATION] = (2, num_channels, *grid)
        return shapes

    @property
    def num_bytes(self) -> int:
        """Size of all arrays."""
        return DTYPE.itemsize * sum(map(prod, self.shapes.values()))


def point_statistics(open_fields: Callable[[int], np.ndarray], rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns mean and population standard deviation over time at each point, float32, `(H, W)` each.

    Missing values are ignored; a point without values gets the mean 0 and the standard deviation 0.
    """
    shape = open_fields(int(rows[0])).shape
    count, mean, squares = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    for first in range(0, len(rows), _FIELDS_PER_PIECE):
        piece = np.stack([open_fields(int(row)) for row in rows[first : first + _FIELDS_PER_PIECE]]).astype(np.float64)
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


class NormalisedInputs:
    """Rows `(C, H, W)` of statistics, normalised at each point when they are read, which takes a few milliseconds.

    The store keeps physical values, which also give the ensemble's own mean and spread.
    """

    def __init__(self, statistics: Fields, mean: np.ndarray, std: np.ndarray) -> None:
        self._statistics, self._mean, self._std = statistics, mean, std
        self.shape = statistics.shape

    def __getitem__(self, row: int) -> np.ndarray:
        return normalise(self._statistics[row], self._mean, self._std)


class EnsembleStore:
    """A store written by `smoe data prepare ens10`. Open it with `EnsembleStore.open`.

    Rows run from north to south, as in ENS-10 and unlike in a `WeatherStore`; columns from 0 eastwards.
    """

    def __init__(self, path: Path, plan: Plan, kind: str, notices: tuple[str, ...]) -> None:
        self.path, self.plan, self.kind, self.notices = path, plan, kind, notices
        task = TASKS[plan.task]
        self.task, self.num_members, self.channels = plan.task, plan.num_members, task.channels
        self.grid = Grid(plan.latitude, plan.longitude)
        self.dates = np.array(plan.starts, "datetime64[D]")
        self.valid_dates = self.dates + np.timedelta64(LEAD_DAYS, "D")
        self.train_years = plan.train_years
        for name, shape in plan.shapes.items():
            found = Rows([path / name]).shape
            if found != shape:
                raise DataError(f"{path / name} is of {found}, expected {shape}: prepare the store again")
        self.target_mean = Rows([path / STATISTICS], 2 * task.target_index)
        self.target_std = Rows([path / STATISTICS], 2 * task.target_index + 1)
        self.truth = Rows([path / TRUTH])
        self.members = Rows([path / MEMBERS], slice(0, plan.num_members)) if plan.has_members else None
        self.efi = Rows([path / EFI]) if plan.efi is not None else None

    @classmethod
    def open(cls, path: str | Path) -> EnsembleStore:
        """Opens a store after checking its metadata and the sizes of its arrays."""
        path = Path(path)
        content = read_metadata(path, FORMAT)
        if not content:
            raise DataError(
                f"there is no ensemble store in {path}; make one with smoe data prepare ens10 --root DATA "
                f"--output {path} --task TASK (z500, t850 or t2m)"
            )
        if content["finished"] is None:
            raise DataError(
                f"the preparation of the store {path} is not finished; run the same command again to resume"
            )
        return cls(path, restore(Plan, content["plan"], path), **_finished(content["finished"]))

    @cached_property
    def inputs(self) -> NormalisedInputs:
        """Statistics, normalised when they are read, rows of `(C, H, W)`."""
        mean, std = np.asarray(Rows([self.path / NORMALISATION]))
        return NormalisedInputs(Rows([self.path / STATISTICS]), mean, std)

    @property
    def checksum(self) -> str:
        """Checksum of metadata and fields."""
        return checksum([asdict(self.plan), *(Rows([self.path / name]).checksums() for name in self.plan.shapes)])

    def years(self) -> tuple[int, ...]:
        """Returns the years of the valid dates."""
        return tuple(sorted(set(years_of(self.valid_dates).tolist())))

    def verify(self) -> Iterator[str]:
        """Yields the name of each array whose bytes are as they were written; otherwise raises a DataError."""
        for name in self.plan.shapes:
            Rows([self.path / name]).verify()
            yield name

    def __reduce__(self) -> tuple[Any, ...]:
        return EnsembleStore, (self.path, self.plan, self.kind, self.notices)


def _finished(plain: dict[str, Any]) -> dict[str, Any]:
    return {"kind": plain["kind"], "notices": tuple(plain["notices"])}


def years_of(dates: np.ndarray) -> np.ndarray:
    return dates.astype("datetime64[Y]").astype(np.int64) + 1970
