"""Stores of fields for training: groups of Zarr 3 whose chunks are mapped.

Arrays are float32 without compression, in chunks along the first axis, each with Zarr's CRC-32C at its end. Any reader
of Zarr opens them. Training maps the files of the chunks: reading a batch through Zarr takes 20 times as long.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from smoe.errors import DataError
from smoe.training import RecipeError, from_plain, to_plain

DTYPE = np.dtype("<f4")
_REMEDY = "delete the store and run smoe data prepare again"
# Each map keeps a file descriptor.
_MOST_MAPS = 64
_CRC_BYTES = 4
_CHUNK_BYTES = 2**26

Plan = TypeVar("Plan")


class Rows:
    """Rows of an array by their number; each process maps them itself."""

    def __init__(self, path: Path, columns: int | slice = slice(None)) -> None:
        self.path, self._columns = path, columns
        try:
            import zarr

            self._array = array = zarr.open_array(path, mode="r")
            codecs: Any = [codec["name"] for codec in array.metadata.to_dict()["codecs"]]  # type: ignore[index]
        except Exception as error:
            # Damaged metadata raise whatever zarr stumbles over.
            raise DataError(f"{path} is missing or damaged ({error}): {_REMEDY}") from error
        is_ours = array.dtype == DTYPE and codecs == ["bytes", "crc32c"]
        if not is_ours or array.chunks[1:] != array.shape[1:] or not all(array.shape):
            raise DataError(f"{path} is no array of plain float32 rows: {_REMEDY}")
        self._size = DTYPE.itemsize * prod(array.chunks) + _CRC_BYTES
        self._map = lru_cache(_MOST_MAPS)(self._map_chunk)
        self.shape: tuple[int, ...] = (array.shape[0], *np.empty(array.shape[1:], np.uint8)[columns].shape)

    @classmethod
    def create(cls, path: Path, shape: tuple[int, ...], names: Sequence[str], *, by_row: bool = False) -> Rows:
        """Creates an array, or opens the one that a stopped preparation left; one row in a chunk, or about 64 MB."""
        import zarr
        from zarr.codecs import Crc32cCodec

        if not (path / "zarr.json").is_file():
            most = 1 if by_row else max(1, _CHUNK_BYTES // (DTYPE.itemsize * prod(shape[1:])))
            zarr.create_array(
                path,
                shape=shape,
                dtype="float32",
                chunks=(min(shape[0], most), *shape[1:]),
                compressors=[Crc32cCodec()],
                fill_value=float("nan"),
                dimension_names=names,
                config={"write_empty_chunks": True},
            )
        return cls(path)

    def missing(self) -> list[slice]:
        """Returns the rows of each chunk that is not written completely."""
        size = self._array.chunks[0]
        return [
            slice(number * size, min((number + 1) * size, len(self)))
            for number, file in enumerate(self._files())
            if not file.is_file() or file.stat().st_size != self._size
        ]

    def __setitem__(self, rows: int | slice, values: np.ndarray) -> None:
        import zarr

        array = zarr.open_array(self.path, mode="r+").with_config({"write_empty_chunks": True})
        array[rows] = values

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, row: int) -> np.ndarray:
        if not 0 <= row < self.shape[0]:
            raise IndexError(f"row {row} of {self.shape[0]}")
        chunk, place = divmod(int(row), self._array.chunks[0])
        return self._map(chunk)[place][self._columns]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        del copy
        return np.stack([self[row] for row in range(len(self))]).astype(dtype or DTYPE)

    def __reduce__(self) -> tuple[Any, ...]:
        return Rows, (self.path, self._columns)

    def check(self, shape: tuple[int, ...]) -> Rows:
        """Refuses another shape and missing chunks."""
        if self._array.shape != shape:
            raise DataError(f"{self.path} is of {self._array.shape}, expected {shape}: {_REMEDY}")
        if missing := self.missing():
            first = missing[0]
            raise DataError(f"{self.path} lacks the rows {first.start} to {first.stop - 1} or parts of them: {_REMEDY}")
        return self

    def checksums(self) -> list[str]:
        """Returns the CRC-32C of each chunk, as written beside it."""
        return [file.read_bytes()[-_CRC_BYTES:].hex() for file in self._files()]

    def _files(self) -> Iterator[Path]:
        array = self._array
        for number in range(-(-array.shape[0] // array.chunks[0])):
            yield self.path / array.metadata.encode_chunk_key((number, *(0,) * (array.ndim - 1)))

    def _map_chunk(self, number: int) -> np.ndarray:
        array = self._array
        file = self.path / array.metadata.encode_chunk_key((number, *(0,) * (array.ndim - 1)))
        # A private writable map, which torch could wrap without a copy, is refused if the file exceeds the memory.
        values = np.memmap(file, DTYPE, "r").view(np.ndarray)
        return values[: -_CRC_BYTES // DTYPE.itemsize].reshape(array.chunks)


class Moments:
    """Count, mean and sum of squared deviations over the first axis of all pieces; NaNs do not count."""

    def __init__(self) -> None:
        self.count, self.mean, self.squares = np.zeros(()), np.zeros(()), np.zeros(())

    def add(self, piece: np.ndarray) -> None:
        is_there = ~np.isnan(piece)
        count = is_there.sum(axis=0)
        mean = np.where(is_there, piece, 0.0).sum(axis=0, dtype=np.float64) / np.maximum(count, 1)
        squares = np.where(is_there, np.square(piece - mean), 0.0).sum(axis=0)
        # Chan's update: a plain sum of squares would lose the digits in which geopotential varies.
        total, distance = np.maximum(self.count + count, 1), mean - self.mean
        self.squares = self.squares + squares + np.square(distance) * self.count * count / total
        self.mean = self.mean + distance * count / total
        self.count = self.count + count

    @property
    def std(self) -> np.ndarray:
        """Population standard deviation; 0 without values."""
        return np.sqrt(self.squares / np.maximum(self.count, 1))


def write_metadata(path: Path, format: str, plan: Any, results: dict[str, Any] | None) -> None:
    """Writes the plan of a store, and what a finished preparation found, as attributes of its group."""
    import zarr

    content = {"format": format, "plan": to_plain(plan), "results": results}
    zarr.open_group(path, mode="a").attrs.put(json.loads(json.dumps(content)))


def read_metadata(path: Path, format: str, kind: type[Plan]) -> tuple[Plan, dict[str, Any] | None] | None:
    """Reads what `write_metadata` wrote; None if there is no store."""
    import zarr

    if not (path / "zarr.json").is_file():
        return None
    try:
        content: dict[str, Any] = dict(zarr.open_group(path, mode="r").attrs)
        if content.get("format") != format:
            raise DataError(f"{path} is not a {format}: name the folder of one")
        return from_plain(kind, content["plan"]), content["results"]
    except DataError:
        raise
    except (RecipeError, Exception) as error:
        raise DataError(f"{path / 'zarr.json'} is damaged ({error}): {_REMEDY}") from error


def open_metadata(path: Path, format: str, kind: type[Plan], command: str) -> tuple[Plan, dict[str, Any]]:
    """Reads the metadata of a finished store."""
    content = read_metadata(path, format, kind)
    if content is None:
        raise DataError(f"there is no {format} in {path}; make one with {command} --root DATA --output {path}")
    if content[1] is None:
        raise DataError(f"the preparation of the store {path} is not finished; run the same command again to resume")
    return content[0], content[1]


def is_finished(path: Path, format: str, plan: Any) -> bool:
    """Whether a store of this plan is finished; refuses one of another plan."""
    content = read_metadata(path, format, type(plan))
    if content is None:
        return False
    old, new = to_plain(content[0]), to_plain(plan)
    changed = [name for name in new if old[name] != new[name]]
    if changed:
        raise DataError(
            f"{path} holds another store, which differs in {', '.join(changed)}: choose another folder, or delete it"
        )
    return content[1] is not None


def checksum(plan: Any, results: Any, arrays: Iterable[Rows]) -> str:
    """Returns the SHA-256 of the metadata and the checksums of all chunks."""
    content = [to_plain(plan), results, [rows.checksums() for rows in arrays]]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@contextmanager
def only_writer(output: Path, arrays: Iterable[str], num_bytes: int) -> Iterator[str]:
    """Makes the folder of a store, keeps other processes out of it, and yields its size in words."""
    from filelock import FileLock, Timeout

    if output.exists() and not output.is_dir():
        raise DataError(f"{output} is a file: choose a folder for the store")
    output.mkdir(parents=True, exist_ok=True)
    known = {*arrays, "zarr.json"}
    foreign = sorted(path.name for path in output.iterdir() if path.name not in known and path.name[0] != ".")
    if foreign:
        raise DataError(f"{output} holds other files, such as {foreign[0]}: choose an empty folder for the store")
    present = sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
    free = shutil.disk_usage(output).free
    size = f"the store takes {num_bytes / 1e9:.3g} GB ({free / 1e9:.3g} GB are free)"
    if num_bytes - present > free:
        raise DataError(f"{size}: choose another disk than that of {output}, or prepare less")
    try:
        with FileLock(output / ".lock", timeout=0):
            yield size
    except Timeout:
        raise DataError(f"another process is preparing {output}: wait for it, or stop it") from None


def tell_missing_years(split: str, years: tuple[int, int], store: Any, notify: Callable[[str], None]) -> None:
    missing = sorted(set(range(years[0], years[1] + 1)) - set(store.years()))
    if missing:
        notify(
            f"{split}: of the years {years[0]} to {years[1]}, {len(missing)} are not in {store.path}: "
            f"{', '.join(map(str, missing))}"
        )
