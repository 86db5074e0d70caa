"""The store that weather recipes train on: normalised fields, an array for each year."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from smoe.errors import DataError, suggest
from smoe_paper.atmosphere.axes import Grid
from smoe_paper.atmosphere.store import (
    DTYPE,
    Rows,
    array_attributes,
    checksum,
    describe_size,
    read_metadata,
    restore,
)

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = "smoe weather store"
FIELDS, CONSTANTS = "fields", "constants"

PRECIPITATION = "tp"
PRECIPITATION_EPSILON = 0.001
"""In metres: rain well below it counts as nearly none, and well above it by its logarithm."""

NaNPolicy = Literal["refuse", "zero-tisr", "zero", "mean"]
Values = TypeVar("Values", np.ndarray, "Tensor")


def transform(channel: str, values: np.ndarray) -> np.ndarray:
    """Returns what is normalised, float64: `ln(tp + eps) - ln(eps)` for precipitation, else the values themselves."""
    values = values.astype(np.float64)
    if channel != PRECIPITATION:
        return values
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(values + PRECIPITATION_EPSILON) - math.log(PRECIPITATION_EPSILON)


def undo_transform(channel: str, values: Values) -> Values:
    """Inverts `transform`, for arrays and tensors."""
    if channel != PRECIPITATION:
        return values
    if isinstance(values, (np.ndarray, np.generic)):
        return np.expm1(values) * PRECIPITATION_EPSILON
    return values.expm1() * PRECIPITATION_EPSILON


@dataclass(frozen=True)
class StoredYear:
    """Rows of one year, as its array's attributes record them."""

    year: int
    first_time: str
    num_steps: int
    num_dropped: int
    num_filled: dict[str, int]

    def times(self, step_hours: int) -> np.ndarray:
        """Returns the times of the rows, datetime64[h]."""
        return np.datetime64(self.first_time, "h") + np.arange(self.num_steps) * np.timedelta64(step_hours, "h")


@dataclass(frozen=True)
class Metadata:
    """Contents of a finished store besides its arrays."""

    channels: tuple[str, ...]
    constant_names: tuple[str, ...]
    latitude: tuple[float, ...]
    longitude: tuple[float, ...]
    step_hours: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    constant_mean: tuple[float, ...]
    constant_std: tuple[float, ...]
    statistics_years: tuple[int, int]
    statistics_from: str | None
    on_nan: NaNPolicy
    notices: tuple[str, ...]
    years: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.step_hours < 1:
            raise ValueError(f"step_hours is {self.step_hours}")
        lengths = [len(self.channels), len(self.constant_names)]
        if lengths != [len(self.mean), len(self.constant_mean)] or lengths != [len(self.std), len(self.constant_std)]:
            raise ValueError("a channel or constant has no mean or no standard deviation")


class WeatherStore:
    """A store written by `smoe data prepare weather`. Open it with `WeatherStore.open`."""

    def __init__(self, path: Path, metadata: Metadata) -> None:
        self.path = path
        self.metadata = metadata
        self.channels = metadata.channels
        self.constant_names = metadata.constant_names
        self.grid = Grid(metadata.latitude, metadata.longitude)
        self.step_hours = metadata.step_hours
        self.mean = np.array(metadata.mean)
        self.std = np.array(metadata.std)
        self.statistics_years = metadata.statistics_years
        self.stored_years = tuple(read_year(path, year) for year in metadata.years)
        self.times = np.concatenate([year.times(metadata.step_hours) for year in self.stored_years])
        self.fields = Rows([path / FIELDS / str(year) for year in metadata.years])
        expected = (len(self.times), len(self.channels), *self.grid.shape)
        if self.fields.shape != expected:
            raise DataError(f"{path} holds fields of {self.fields.shape}, expected {expected}: prepare it again")

    @classmethod
    def open(cls, path: str | Path) -> WeatherStore:
        """Opens a store after checking its metadata, the sizes of its arrays, and the constants."""
        path = Path(path)
        content = read_metadata(path, FORMAT)
        if not content:
            raise DataError(
                f"there is no weather store in {path}; make one with smoe data prepare weather --root DATA "
                f"--output {path}"
            )
        if content["finished"] is None:
            raise DataError(
                f"the preparation of the store {path} is not finished; run the same smoe data prepare again to resume"
            )
        store = cls(path, restore(Metadata, content["finished"], path))
        Rows([path / CONSTANTS]).verify()
        return store

    @cached_property
    def raw_constants(self) -> np.ndarray:
        """Constants in physical units, float32, `(K, H, W)`."""
        return np.asarray(Rows([self.path / CONSTANTS]))[: len(self.constant_names)]

    @cached_property
    def constants(self) -> np.ndarray:
        """Constants, each normalised by its mean and standard deviation over the grid, float32, `(K, H, W)`."""
        mean, std = (
            np.array(values)[:, None, None] for values in (self.metadata.constant_mean, self.metadata.constant_std)
        )
        return ((self.raw_constants - mean) / std).astype(np.float32)

    @property
    def num_bytes(self) -> int:
        """Size of the fields."""
        return math.prod(self.fields.shape) * DTYPE.itemsize

    @property
    def checksum(self) -> str:
        """Checksum of metadata and fields."""
        return checksum([asdict(self.metadata), self.fields.checksums()])

    def raw_constant(self, name: str) -> np.ndarray:
        """Returns one constant in physical units, `(H, W)`: `lsm` is the share of land, in [0, 1]."""
        return self.raw_constants[self.constant_indices([name])[0]]

    def channel_indices(self, names: Sequence[str]) -> list[int]:
        return [self._find(name, self.channels, "channel") for name in names]

    def constant_indices(self, names: Sequence[str]) -> list[int]:
        return [self._find(name, self.constant_names, "constant") for name in names]

    def to_physical(self, channel: str, values: Values) -> Values:
        """Converts values of one channel, of any shape, to physical units; inverts normalisation and logarithm."""
        (index,) = self.channel_indices([channel])
        return undo_transform(channel, values * float(self.std[index]) + float(self.mean[index]))

    def years(self) -> tuple[int, ...]:
        """Returns the years of the store, complete or not."""
        return self.metadata.years

    def verify(self) -> Iterator[int]:
        """Reads all fields and yields each year whose bytes are as they were written; otherwise raises a DataError."""
        for year in self.metadata.years:
            Rows([self.path / FIELDS / str(year)]).verify()
            yield year

    def describe(self) -> str:
        """Returns lines with times, channels and size, and the values that were left out or replaced."""
        rows, columns = self.grid.shape
        lines = [
            f"{self.path}: {len(self.times):,} times, {self.times[0]} h to {self.times[-1]} h, every "
            f"{self.step_hours} h; {len(self.channels)} channels, {rows} x {columns}; {describe_size(self.num_bytes)}",
            f"mean and deviation are of {self.statistics_years[0]} to {self.statistics_years[1]}"
            f"{' of another store' if self.metadata.statistics_from else ''}",
        ]
        for year in self.stored_years:
            if year.num_dropped:
                lines.append(
                    f"{year.year}: {year.num_dropped} steps left out at the beginning, where sums over past hours are "
                    "not defined"
                )
            if year.num_filled:
                named = ", ".join(f"{count:,} of {channel}" for channel, count in year.num_filled.items())
                lines.append(f"{year.year}: NaNs replaced ({self.metadata.on_nan}): {named}")
        return "\n".join(lines) + "\n"

    def __reduce__(self) -> tuple[Any, ...]:
        return WeatherStore, (self.path, self.metadata)

    def _find(self, name: str, names: tuple[str, ...], kind: str) -> int:
        if name in names:
            return names.index(name)
        hint = suggest(name, names, otherwise="it has")
        raise DataError(f"the store {self.path} has no {kind} {name!r}; {hint}")


def read_year(path: Path, year: int) -> StoredYear:
    """Returns what the array of a year records."""
    return restore(StoredYear, array_attributes(path / FIELDS / str(year)), path)
