"""Files of a weather store, and its metadata with a checksum.

`fields.f32` holds the normalised fields as plain little-endian float32, `(T, C, H, W)`, year after year, without a
header, so that later years can be appended. `constants.f32` holds the constants `(K, H, W)` in physical units.
`store.json` describes both and is written last. While years are being written, `preparation.json` records the
progress.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from smoe._integrity import checksum, read_checked_json, write_checked_json
from smoe._plain import RecipeError, from_plain
from smoe.errors import DataError
from smoe.gridded.field_files import DTYPE

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
