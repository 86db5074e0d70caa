"""Stores of fields for training: groups of Zarr 3 whose chunks are mapped.

Arrays are float32 without compression, in chunks along the first axis, each with Zarr's CRC-32C at its end. Any reader
of Zarr opens them. Training maps the files of the chunks: reading a batch through Zarr takes 20 times as long.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from smoe.errors import DataError

if TYPE_CHECKING:
    import zarr

DTYPE = np.dtype("<f4")
VERSION = 2
_REMEDY = "delete the store and run smoe data prepare again"
_LOCK = ".lock"
# Each map keeps a file descriptor.
_MOST_MAPS = 64
_CRC_BYTES = 4

Metadata = TypeVar("Metadata")


def create_array(path: Path, shape: tuple[int, ...], names: Sequence[str], rows_per_chunk: int = 1) -> zarr.Array:
    """Creates an array whose chunks hold some of its rows; a chunk with NaNs only is written as well."""
    import zarr
    from zarr.codecs import Crc32cCodec

    return zarr.create_array(
        path,
        shape=shape,
        dtype="float32",
        chunks=(rows_per_chunk, *shape[1:]),
        compressors=[Crc32cCodec()],
        fill_value=float("nan"),
        dimension_names=names,
        config={"write_empty_chunks": True},
    )


@contextmanager
def written_by_map(
    path: Path, shape: tuple[int, ...], names: Sequence[str], attributes: dict[str, Any]
) -> Iterator[Path]:
    """Yields a file to map and fill: the only chunk of an array, which gets its name when it is complete.

    Zarr would read and write the whole chunk for each part of it. The attributes may be filled until the end.
    """
    temporary = path.with_name(f".{path.name}.partial")
    for folder in (temporary, path):
        shutil.rmtree(folder, ignore_errors=True)
    array = create_array(temporary, shape, names, shape[0])
    file = temporary / _key(array, 0)
    file.parent.mkdir(parents=True)
    with file.open("wb") as opened:
        # A full disk causes an error here, and not a crash in the middle of a mapped page.
        os.posix_fallocate(opened.fileno(), 0, DTYPE.itemsize * prod(shape))
    yield file
    array.attrs.update(attributes)
    checksum = _crc32c(file, DTYPE.itemsize * prod(shape))
    with file.open("ab") as opened:
        opened.write(checksum.to_bytes(_CRC_BYTES, "little"))
        opened.flush()
        os.fsync(opened.fileno())
    temporary.replace(path)


class Rows:
    """Rows of one or several arrays, one array behind the other, by their number; each process maps them itself."""

    def __init__(self, paths: Iterable[Path], columns: int | slice = slice(None)) -> None:
        self._paths, self._columns = tuple(paths), columns
        self._files: list[Path] = []
        self._first: list[int] = []
        length = 0
        for path in self._paths:
            chunk, files = _chunks_of(path)
            self._files += files
            self._first += range(length, length + chunk[0] * len(files), chunk[0])
            length += chunk[0] * len(files)
            if len(self._files) > len(files) and chunk[1:] != self._row_shape:
                raise DataError(f"{path} has rows of {chunk[1:]}, the array before of {self._row_shape}: {_REMEDY}")
            self._row_shape = chunk[1:]
        self._map = lru_cache(_MOST_MAPS)(self._map_file)
        self.shape = (length, *self._map(0)[0][columns].shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, row: int) -> np.ndarray:
        if not 0 <= row < self.shape[0]:
            raise IndexError(f"row {row} of {self.shape[0]}")
        place = bisect_right(self._first, row) - 1
        return self._map(place)[row - self._first[place]][self._columns]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        del copy
        return np.stack([self[row] for row in range(len(self))]).astype(dtype or DTYPE)

    def __reduce__(self) -> tuple[Any, ...]:
        return Rows, (self._paths, self._columns)

    def checksums(self) -> list[int]:
        """Returns the CRC-32C of each chunk, as written beside it."""
        return [_stored_crc32c(file) for file in self._files]

    def verify(self) -> None:
        """Reads all chunks and compares them with their checksums."""
        for file in self._files:
            if _crc32c(file, file.stat().st_size - _CRC_BYTES) != _stored_crc32c(file):
                raise DataError(f"{file} is not as it was written: {_REMEDY}")

    def _map_file(self, place: int) -> np.ndarray:
        # A private writable map, which torch could wrap without a copy, is refused if the file exceeds the memory.
        values = np.memmap(self._files[place], DTYPE, "r").view(np.ndarray)
        return values[: -_CRC_BYTES // DTYPE.itemsize].reshape(-1, *self._row_shape)


def array_attributes(path: Path) -> dict[str, Any]:
    return dict(_open_array(path).attrs)


def written_rows(path: Path) -> set[int]:
    """Returns the rows of an array, of one row in each chunk, that are written completely."""
    array = _open_array(path)
    size = DTYPE.itemsize * prod(array.chunks) + _CRC_BYTES
    files = {row: path / _key(array, row) for row in range(array.shape[0])}
    return {row for row, file in files.items() if file.is_file() and file.stat().st_size == size}


def _open_array(path: Path) -> zarr.Array:
    import zarr

    try:
        return zarr.open_array(path, mode="r")
    except Exception as error:
        # Damaged metadata raise whatever zarr stumbles over.
        raise DataError(f"{path} is missing or damaged ({error}): {_REMEDY}") from error


def _key(array: zarr.Array, place: int) -> str:
    return array.metadata.encode_chunk_key((place, *(0,) * (array.ndim - 1)))


def _chunks_of(path: Path) -> tuple[tuple[int, ...], list[Path]]:
    array = _open_array(path)
    plain: Any = array.metadata.to_dict()
    codecs = [(codec["name"], codec.get("configuration", {}).get("endian", "")) for codec in plain.get("codecs", ())]
    chunk = tuple(array.chunks)
    is_ours = array.dtype == DTYPE and codecs == [("bytes", "little"), ("crc32c", "")]
    if not is_ours or chunk[1:] != array.shape[1:] or not all(array.shape) or array.shape[0] % chunk[0]:
        raise DataError(f"{path} is no array of plain float32 rows: {_REMEDY}")
    expected = DTYPE.itemsize * prod(chunk) + _CRC_BYTES
    files = []
    for place in range(array.shape[0] // chunk[0]):
        file = path / _key(array, place)
        actual = file.stat().st_size if file.is_file() else None
        if actual != expected:
            found = "is missing" if actual is None else f"has {actual:,} bytes"
            raise DataError(f"{file} {found}, but {expected:,} are needed: {_REMEDY}")
        files.append(file)
    return chunk, files


def _crc32c(file: Path, num_bytes: int) -> int:
    import google_crc32c

    crc = 0
    with file.open("rb") as opened:
        while num_bytes:
            piece = opened.read(min(num_bytes, 1 << 24))
            crc = google_crc32c.extend(crc, piece)
            num_bytes -= len(piece)
    return crc


def _stored_crc32c(file: Path) -> int:
    with file.open("rb") as opened:
        opened.seek(-_CRC_BYTES, os.SEEK_END)
        return int.from_bytes(opened.read(), "little")


def checksum(content: Any) -> str:
    """Returns the SHA-256 of plain values; floats count with all their digits."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def write_metadata(path: Path, format: str, **parts: Any) -> None:
    """Writes dataclasses and plain values as the attributes of a store's group, whole or not at all."""
    import zarr

    content = {name: asdict(part) if hasattr(part, "__dataclass_fields__") else part for name, part in parts.items()}
    content = json.loads(json.dumps(content))
    head = {"format": format, "version": VERSION, "checksum": checksum(content)}
    zarr.open_group(path, mode="a").attrs.put({**head, "content": content})


def read_metadata(path: Path, format: str) -> dict[str, Any]:
    """Reads what `write_metadata` wrote; an empty dictionary if there is no store."""
    import zarr

    if not (path / "zarr.json").is_file():
        return {}
    try:
        whole: dict[str, Any] = dict(zarr.open_group(path, mode="r").attrs)
    except Exception as error:
        raise DataError(f"{path / 'zarr.json'} is damaged ({error}): {_REMEDY}") from error
    if whole.get("format") != format:
        raise DataError(f"{path} is not a {format}: name the folder of one")
    if whole.get("version") != VERSION:
        raise DataError(f"{path} has version {whole.get('version')} of the format, expected {VERSION}: {_REMEDY}")
    if checksum(whole.get("content")) != whole.get("checksum"):
        raise DataError(f"{path / 'zarr.json'} was edited or damaged: its checksum does not fit; {_REMEDY}")
    return whole["content"]


def restore(kind: type[Metadata], plain: dict[str, Any], path: Path) -> Metadata:
    """Returns a dataclass of plain values and tuples as `read_metadata` returns it."""
    try:
        return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()})
    except (TypeError, ValueError) as error:
        raise DataError(f"{path / 'zarr.json'} does not hold what version {VERSION} holds ({error})") from error


@contextmanager
def only_writer(output: Path, our_files: Iterable[str]) -> Iterator[None]:
    """Makes the folder of a store and keeps other processes out of it."""
    from filelock import FileLock, Timeout

    if output.exists() and not output.is_dir():
        raise DataError(f"{output} is a file: choose a folder for the store")
    output.mkdir(parents=True, exist_ok=True)
    known = {*our_files, "zarr.json"}
    foreign = sorted(path.name for path in output.iterdir() if path.name not in known and path.name[0] != ".")
    if foreign:
        raise DataError(f"{output} holds other files, such as {foreign[0]}: choose an empty folder for the store")
    try:
        with FileLock(output / _LOCK, timeout=0):
            yield
    except Timeout:
        raise DataError(f"another process is preparing {output}: wait for it, or stop it") from None


def check_disk(output: Path, num_bytes: int, remedy: str) -> str:
    """Checks that a store fits on its disk, and returns its size in words."""
    present = sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
    free = shutil.disk_usage(output).free
    size, room = describe_size(num_bytes), describe_size(free)
    if num_bytes - present > free:
        raise DataError(
            f"the store takes {size}, and the disk of {output} has {room} free: choose another disk, {remedy}"
        )
    return f"the store takes {size} ({room} are free)"


def describe_size(num_bytes: int) -> str:
    """Returns a number of bytes in GB, or in MB where that would be a small fraction."""
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"


def describe_years(years: Iterable[int]) -> str:
    """Returns years as ranges: `1979-1981, 1983`."""
    parts: list[list[int]] = []
    for year in years:
        if parts and parts[-1][1] == year - 1:
            parts[-1][1] = year
        else:
            parts.append([year, year])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts) or "none"
