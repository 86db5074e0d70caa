"""The store that training reads: normalised fields in one memory-mapped file."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from smoe._integrity import checksum, read_checked_json, write_checked_json
from smoe._plain import RecipeError, from_plain
from smoe.errors import DataError, suggest
from smoe_paper.atmosphere.grid import Grid
from smoe_paper.atmosphere.statistics import (
    PRECIPITATION,
    PRECIPITATION_EPSILON,
    STEPS_PER_PIECE,
    Values,
    transform,
    undo_transform,
)
from smoe_paper.atmosphere.stores import DTYPE, crc32_of_rows
from smoe_paper.atmosphere.variables import VARIABLES, parse_channel
from smoe_paper.weather.data.source import WeatherSource

FORMAT = "smoe weather store"
VERSION = 1
FIELDS_FILE = "fields.f32"
CONSTANTS_FILE = "constants.f32"
METADATA_FILE = "store.json"
PREPARATION_FILE = "preparation.json"

NaNPolicy = Literal["refuse", "zero-tisr", "zero", "mean"]


@dataclass(frozen=True)
class StoredYear:
    """The rows of one year.

    Attributes:
        year: Calendar year.
        first_time: Time of the first row, such as `1979-01-01T00`; the others follow at the store's step.
        num_steps: Number of rows.
        num_dropped: Number of steps left out before the first row, where a sum over past hours is not defined yet.
        num_filled: Number of replaced NaNs, by channel.
        crc32: Checksum of the bytes in `fields.f32`.
    """

    year: int
    first_time: str
    num_steps: int
    num_dropped: int
    num_filled: dict[str, int]
    crc32: int

    def times(self, step_hours: int) -> np.ndarray:
        """Returns the times of the rows, datetime64[h]."""
        return np.datetime64(self.first_time, "h") + np.arange(self.num_steps) * np.timedelta64(step_hours, "h")


@dataclass(frozen=True)
class Metadata:
    """Contents of `store.json`. The attributes are those of `WeatherStore`, as plain values.

    Attributes:
        statistics_from: Checksum of the store that gave mean and std; None if they were computed from the source.
        on_nan: Treatment of NaNs.
        notices: Corrections made by the reader of the source.
    """

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
    constants_crc32: int
    notices: tuple[str, ...]
    years: tuple[StoredYear, ...]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of the fields, `(T, C, H, W)`."""
        num_steps = sum(year.num_steps for year in self.years)
        return num_steps, len(self.channels), len(self.latitude), len(self.longitude)

    @property
    def bytes_per_row(self) -> int:
        """Size of all channels at one step."""
        return int(np.prod(self.shape[1:])) * DTYPE.itemsize

    @property
    def num_bytes(self) -> int:
        """Size of the fields."""
        return self.shape[0] * self.bytes_per_row

    @property
    def checksum(self) -> str:
        """Checksum of the whole content."""
        return checksum(asdict(self))

    def write(self, folder: Path) -> None:
        """Writes `store.json` atomically."""
        write_json(folder / METADATA_FILE, asdict(self))

    @classmethod
    def read(cls, folder: Path) -> Metadata:
        """Reads `store.json`.

        Raises:
            DataError: If it is missing, of another format or version, or changed.
        """
        path = folder / METADATA_FILE
        try:
            metadata = from_plain(cls, read_json(path))
            metadata.check()
        except (RecipeError, ValueError) as error:
            raise DataError(f"{path} does not hold what version {VERSION} holds ({error})") from error
        return metadata

    def check(self) -> None:
        """Checks what the size of the fields does not imply: a file from a stranger can claim any number of steps.

        Raises:
            ValueError: If the fields of a step take no room, a number is out of range, or lengths differ.
        """
        if not self.bytes_per_row or not self.years:
            raise ValueError(f"the shape of the fields is {self.shape}")
        for name, values, others in (
            ("channels", self.channels, (self.mean, self.std)),
            ("constant_names", self.constant_names, (self.constant_mean, self.constant_std)),
        ):
            if any(len(other) != len(values) for other in others):
                raise ValueError(f"{name} has {len(values)} entries, but its means and deviations have another number")
        if self.step_hours < 1 or any(year.num_steps < 1 for year in self.years):
            raise ValueError("step_hours and the num_steps of each year must be at least 1")
        for year in self.years:
            np.datetime64(year.first_time, "h")


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Writes plain values in this format, atomically."""
    write_checked_json(path, content, FORMAT, VERSION)


def read_json(path: Path) -> dict[str, Any]:
    """Reads a file written by `write_json`.

    Raises:
        DataError: If it is of another format or version, damaged or edited.
    """
    return read_checked_json(path, FORMAT, VERSION)


# At the start of a record, sums over past hours are not defined yet: in WeatherBench they start at 07 h of 1979, and
# the sums over 6 hours 5 hours later. Rasp & Thuerey leave out the first 24 h.
_MAX_UNDEFINED_HOURS = 24


@dataclass(frozen=True)
class YearSpan:
    """Every `stride`-th step of a year of the source, from the step `first` on."""

    year: int
    first: int
    stride: int
    num_steps: int
    first_time: str

    @property
    def num_before(self) -> int:
        """Number of steps left out before the first, because a channel is not defined there."""
        return self.first // self.stride


def find_span(source: WeatherSource, year: int, channels: tuple[str, ...], step_hours: int) -> YearSpan:
    """Returns the steps at the hours 0, step, 2 * step, ... of each day at which every channel is defined."""
    times = source.times(year)
    first = _count_undefined(source, year, times, channels)
    hours = times[first:].astype("datetime64[h]").astype(np.int64)
    on_step = np.flatnonzero(hours % step_hours == 0)
    if not len(on_step):
        raise DataError(f"the year {year} has no step at a multiple of {step_hours} hours; choose another --step-hours")
    first += int(on_step[0])
    stride = step_hours // source.step_hours
    kept = times[first::stride]
    if not (np.diff(kept) == np.timedelta64(step_hours, "h")).all():
        raise DataError(f"the times of {year} are not {step_hours} hours apart everywhere: see smoe data check")
    return YearSpan(year, first, stride, len(kept), str(kept[0].astype("datetime64[h]")))


def read_span(source: WeatherSource, channel: str, span: YearSpan, on_nan: NaNPolicy) -> tuple[np.ndarray, int]:
    """Returns the fields `(T, H, W)` of a channel at these steps, and the number of replaced NaNs."""
    values, times = source.read(channel, span.year), source.times(span.year)
    expected = (len(times), *source.grid.shape)
    if values.shape != expected:
        raise DataError(f"{channel} of {span.year} has the shape {values.shape}, expected {expected}")
    kept = slice(span.first, None, span.stride)
    return replace_missing(channel, values[kept], times[kept], source.grid, on_nan)


def _count_undefined(source: WeatherSource, year: int, times: np.ndarray, channels: tuple[str, ...]) -> int:
    """Returns the number of leading steps at which a sum over past hours has no value anywhere."""
    if year - 1 in source.years:
        return 0
    most = 0
    longest = np.timedelta64(_MAX_UNDEFINED_HOURS, "h")
    for channel in channels:
        if VARIABLES[parse_channel(channel).variable].is_accumulated:
            values = source.read(channel, year)
            num_steps = next((step for step, field in enumerate(values) if not np.isnan(field).all()), len(values))
            is_short = num_steps < len(times) and times[num_steps] - times[0] <= longest
            most = max(most, num_steps if is_short else 0)
    return most


def replace_missing(
    channel: str, values: np.ndarray, times: np.ndarray, grid: Grid, on_nan: NaNPolicy
) -> tuple[np.ndarray, int]:
    """Applies the policy to the values `(T, H, W)` of a channel.

    With the policy `mean` NaNs stay, because the mean is not known here.

    Returns:
        The values, and the number of NaNs that the policy replaces.

    Raises:
        DataError: If a value is infinite, precipitation has no logarithm, or the policy does not cover a NaN.
    """
    num_missing = 0
    for first in range(0, len(values), STEPS_PER_PIECE):
        piece = values[first : first + STEPS_PER_PIECE]
        is_wrong = np.isinf(piece)
        if channel == PRECIPITATION:
            is_wrong |= piece <= -PRECIPITATION_EPSILON
        if is_wrong.any():
            place, value = _first_place(is_wrong, times[first:], grid), piece[is_wrong][0]
            raise DataError(f"{channel} is {value:g} at {place}, which no policy covers: repair the file")
        num_missing += int(np.isnan(piece).sum())
    if not num_missing or on_nan == "mean":
        return values, num_missing
    if on_nan == "zero" or (on_nan == "zero-tisr" and channel == "tisr"):
        return np.nan_to_num(values, nan=0.0, posinf=np.inf, neginf=-np.inf), num_missing
    year = str(times[0].astype("datetime64[Y]"))
    raise DataError(
        f"{channel} holds {num_missing:,} NaN in {year}, {num_missing / values.size:.2%} of its values, the first at "
        f"{_first_place(np.isnan(values), times, grid)}: repair the file, leave the channel out of --channels, or "
        "choose what replaces them with --on-nan"
    )


def _first_place(is_there: np.ndarray, times: np.ndarray, grid: Grid) -> str:
    step, row, column = np.unravel_index(int(is_there.argmax()), is_there.shape)
    time = times[step].astype("datetime64[h]")
    return f"{time} h, latitude {grid.latitude[row]:g}, longitude {grid.longitude[column]:g}"


class WeatherStore:
    """A store written by `smoe data prepare weather`. Open it with `WeatherStore.open`.

    The fields are mapped on first use, and again in each process that receives a store.

    Attributes:
        path: Folder of the store.
        channels: Names of the fields, such as `z_500`, in the order of the channel dimension.
        constant_names: Names of the constants, such as `lsm`.
        grid: Grid with latitudes from south to north and longitudes from 0 eastwards.
        step_hours: Hours between two steps of a year.
        times: Times of the steps, datetime64[h], `(T,)`, ascending; years that were not prepared are gaps.
        mean: Mean of each channel, after the transform of precipitation, float64, `(C,)`.
        std: Standard deviation of each channel, as for `mean`.
        statistics_years: First and last year of the statistics.
        metadata: Metadata of the preparation.
    """

    def __init__(self, path: Path, metadata: Metadata) -> None:
        self.path = path
        self.metadata = metadata
        self.channels = metadata.channels
        self.constant_names = metadata.constant_names
        self.grid = Grid(metadata.latitude, metadata.longitude)
        self.step_hours = metadata.step_hours
        self.times = np.concatenate([year.times(metadata.step_hours) for year in metadata.years])
        self.mean = np.array(metadata.mean)
        self.std = np.array(metadata.std)
        self.statistics_years = metadata.statistics_years

    @classmethod
    def open(cls, path: str | Path) -> WeatherStore:
        """Opens a store after checking its metadata, the size of the fields, and the constants.

        Raises:
            DataError: If it is missing, unfinished, of another format or version, or damaged.
        """
        path = Path(path)
        if not (path / METADATA_FILE).is_file():
            if (path / PREPARATION_FILE).is_file():
                state = read_json(path / PREPARATION_FILE)
                raise DataError(
                    f"the preparation of the store {path} is not finished: {len(state['years'])} of "
                    f"{len(state['plan']['years'])} years are written; run the same smoe data prepare again to resume"
                )
            raise DataError(
                f"there is no weather store in {path} (no {METADATA_FILE}); make one with "
                f"smoe data prepare weather --root DATA --output {path}"
            )
        metadata = Metadata.read(path)
        _check_size(path, metadata)
        store = cls(path, metadata)
        store.raw_constants  # noqa: B018  reads and checks them
        return store

    @cached_property
    def fields(self) -> np.ndarray:
        """Normalised fields, float32, `(T, C, H, W)`, mapped read-only."""
        # A private writable map, which torch could wrap without a copy, is refused if the file exceeds the memory.
        return np.memmap(self.path / FIELDS_FILE, DTYPE, "r", shape=self.metadata.shape)

    @cached_property
    def raw_constants(self) -> np.ndarray:
        """Constants in physical units, float32, `(K, H, W)`."""
        shape = (len(self.constant_names), *self.metadata.shape[2:])
        path = self.path / CONSTANTS_FILE
        content = path.read_bytes() if path.is_file() else b""
        if len(content) != np.prod(shape) * DTYPE.itemsize or zlib.crc32(content) != self.metadata.constants_crc32:
            raise DataError(f"{path} is missing or damaged: delete the store and run smoe data prepare again")
        return np.frombuffer(bytearray(content), DTYPE).reshape(shape)

    @cached_property
    def constants(self) -> np.ndarray:
        """Constants, each normalised by its mean and standard deviation over the grid, float32, `(K, H, W)`."""
        mean, std = (
            np.array(values)[:, None, None] for values in (self.metadata.constant_mean, self.metadata.constant_std)
        )
        return ((self.raw_constants - mean) / std).astype(np.float32)

    def raw_constant(self, name: str) -> np.ndarray:
        """Returns one constant in physical units, `(H, W)`: `lsm` is the share of land, in [0, 1]."""
        return self.raw_constants[self.constant_indices([name])[0]]

    def channel_indices(self, names: Sequence[str]) -> list[int]:
        """Returns the indices of channels in the channel dimension.

        Raises:
            DataError: If a channel is not in the store.
        """
        return [self._find(name, self.channels, "channel") for name in names]

    def constant_indices(self, names: Sequence[str]) -> list[int]:
        """Returns the indices of constants.

        Raises:
            DataError: If a constant is not in the store.
        """
        return [self._find(name, self.constant_names, "constant") for name in names]

    def to_physical(self, channel: str, values: Values) -> Values:
        """Converts values of one channel, of any shape, to physical units; inverts normalisation and logarithm."""
        (index,) = self.channel_indices([channel])
        return undo_transform(channel, values * float(self.std[index]) + float(self.mean[index]))

    def to_normalised(self, channel: str, values: Values) -> Values:
        """Inverts `to_physical`."""
        (index,) = self.channel_indices([channel])
        mean, std = float(self.mean[index]), float(self.std[index])
        if isinstance(values, (np.ndarray, np.generic)):
            return ((transform(channel, values) - mean) / std).astype(values.dtype)
        return values.new_tensor((transform(channel, values.detach().cpu().numpy()) - mean) / std)

    def years(self) -> tuple[int, ...]:
        """Returns the years of the store, complete or not."""
        return tuple(year.year for year in self.metadata.years)

    def verify(self) -> Iterator[int]:
        """Reads all fields, year by year, and compares them with the checksums taken when they were written.

        Yields:
            Each unchanged year.

        Raises:
            DataError: If the bytes of a year have changed.
        """
        path, offset = self.path / FIELDS_FILE, 0
        for year in self.metadata.years:
            num_bytes = year.num_steps * self.metadata.bytes_per_row
            if crc32_of_rows(path, offset, num_bytes) != year.crc32:
                raise DataError(
                    f"{path}: the year {year.year} is not as it was written: "
                    "delete the store and run smoe data prepare again"
                )
            offset += num_bytes
            yield year.year

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "metadata": self.metadata}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)

    def _find(self, name: str, names: tuple[str, ...], kind: str) -> int:
        if name in names:
            return names.index(name)
        hint = suggest(name, names, otherwise="it has")
        raise DataError(f"the store {self.path} has no {kind} {name!r}; {hint}")


def _check_size(path: Path, metadata: Metadata) -> None:
    fields = path / FIELDS_FILE
    actual = fields.stat().st_size if fields.is_file() else None
    expected = metadata.num_bytes
    # While years are being appended, the file is longer than the store.
    is_growing = (path / PREPARATION_FILE).is_file()
    if actual == expected or (is_growing and actual is not None and actual > expected):
        return
    found = "is missing" if actual is None else f"has {actual:,} bytes"
    raise DataError(
        f"{fields} {found}, but {expected:,} are needed for {metadata.shape[0]:,} steps of "
        f"{metadata.shape[1]} channels: delete the store and run smoe data prepare again"
    )
