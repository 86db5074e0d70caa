"""The compact store for training: normalised fields in one memory-mapped file."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from smoe.errors import DataError, suggest
from smoe.gridded.field_files import DTYPE, crc32_of_rows
from smoe.gridded.grid import Grid
from smoe.gridded.statistics import Values, transform, undo_transform
from smoe_paper.weather.data.store_format import (
    CONSTANTS_FILE,
    FIELDS_FILE,
    METADATA_FILE,
    PREPARATION_FILE,
    Metadata,
    read_json,
)


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
