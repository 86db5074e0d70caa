"""Atomic writes, locks, temporary folders, reading ahead, and checks that data files are whole.

The libraries that read data files take lost values for fill values, or skip them: hence the checks.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import socket
import tempfile
import warnings
import weakref
import zipfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Self, TypeVar

from smoe.errors import DataError

Item = TypeVar("Item")
Block = TypeVar("Block")

_LOCK_FILE = "lock"
# A pipe is not waited for, a link not followed, and nothing truncated.
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class LockedError(Exception):
    """Another process, such as `process 71` or `process 71 on node4`, holds the lock."""

    def __init__(self, holder: str) -> None:
        super().__init__(f"{holder} has the lock")
        self.holder = holder


class FileLock:
    """An exclusive lock on a file; a context manager that creates the file and removes it at the end.

    The system releases the lock when the process ends, also after a kill: a file that is left behind locks nothing. On
    a file system without locks, a warning is issued if it `warns`, nothing is locked, and `is_held` is false.

    Raises:
        LockedError: If another process, or another lock of this process, holds it.
        OSError: If the file cannot be created or opened, or is a link or a pipe.
    """

    def __init__(self, path: Path, *, warns: bool = True) -> None:
        self.path, self.is_held, self._warns = path, False, warns
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        self._descriptor = os.open(self.path, _FLAGS, 0o644)
        self.is_held = self._try_lock(self._descriptor)
        if not self._is_at_path():
            # The process that held the lock has removed the file in between.
            self._close()
            return self.__enter__()
        # Processes that this one forks, such as those that read data, share the lock until they close it, and would
        # keep it if this one was killed.
        close = weakref.WeakMethod(self._close)
        os.register_at_fork(after_in_child=lambda: None if (method := close()) is None else method())
        try:
            os.pwrite(self._descriptor, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)
        except OSError:
            # A disk that is full, for example: the lock must not outlive the error.
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            # A folder that was removed and made again may have the lock of another process at this path.
            if self._is_at_path():
                self.path.unlink()
        self._close()

    def _try_lock(self, descriptor: int) -> bool:
        import fcntl

        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            pid, _, host = os.pread(descriptor, 300, 0).decode(errors="replace").partition("\n")[0].partition(" ")
            self._close()
            where = "" if host == socket.gethostname() else f" on {host}"
            # Without a number, the lock was taken just now.
            raise LockedError(f"process {pid}{where}" if pid.isdigit() else "another process") from None
        except OSError as error:
            if self._warns:
                message = f"{self.path} cannot be locked ({error.strerror}): make sure that no other process uses it"
                warnings.warn(message, stacklevel=3)
            return False

    def _is_at_path(self) -> bool:
        with suppress(FileNotFoundError):
            return self._descriptor is not None and os.path.samestat(self.path.lstat(), os.fstat(self._descriptor))
        return False

    def _close(self) -> None:
        self.is_held = False
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


@contextmanager
def temporary_folder(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """Makes a folder that is removed at the end, after it removed those whose process was killed."""
    parent = Path(tempfile.gettempdir()) if parent is None else parent
    with suppress(OSError):
        for folder in [path for path in parent.iterdir() if path.name.startswith(prefix)]:
            with suppress(OSError, LockedError):
                _remove_if_abandoned(folder)
    with ExitStack() as stack:
        while True:
            folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            # Another process may take the empty folder for an abandoned one.
            with suppress(FileNotFoundError):
                stack.enter_context(FileLock(folder / _LOCK_FILE, warns=False))
                break
        yield folder


def _remove_if_abandoned(folder: Path) -> None:
    if folder.is_symlink() or not folder.is_dir():
        return
    if not os.path.lexists(folder / _LOCK_FILE):
        # Its process was killed before it locked the folder, which is empty, or is about to lock it.
        folder.rmdir()
        return
    with FileLock(folder / _LOCK_FILE, warns=False) as lock:
        if lock.is_held:
            shutil.rmtree(folder, ignore_errors=True)


def write_atomically(path: Path, write: Callable[[BinaryIO], object], *, make_folder: bool = True) -> None:
    """Writes a file in a temporary folder beside `path`, brings it to disk, and gives it its name only then."""
    if make_folder:
        path.parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder(f".{path.name}.", path.parent) as folder, (folder / "content").open("xb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
        os.replace(folder / "content", path)


def read_ahead(read: Callable[[Item], Block], items: Iterable[Item]) -> Iterator[tuple[Item, Block]]:
    """Yields `item` and `read(item)`; a thread reads one block ahead, so that two blocks are held at once."""
    with ThreadPoolExecutor(1, thread_name_prefix="smoe-read") as pool:
        waiting: tuple[Item, Future[Block]] | None = None
        for item in items:
            following = (item, pool.submit(read, item))
            if waiting is not None:
                yield waiting[0], waiting[1].result()
            waiting = following
        if waiting is not None:
            yield waiting[0], waiting[1].result()


def reason_not_to_write(path: Path) -> str | None:
    """Why nothing can be made at a path, such as `runs is a file`; None if it can."""
    folder = path
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        return f"{folder} is a file"
    return None if os.access(folder, os.W_OK | os.X_OK) else f"{folder} is read-only for this user"


_REMEDY = "copy or download it again"
_MOST_CHUNKS = 10_000_000


def check_grib_file(path: Path) -> None:
    """Refuses a file that is cut off inside a message, which ecCodes skips.

    A file that is cut off between two messages is a shorter file, and is not noticed.
    """
    size, place = path.stat().st_size, 0
    with path.open("rb") as file:
        while place < size:
            file.seek(place)
            header = file.read(16)
            if not header.startswith(b"GRIB"):
                # Between messages there may be headers of telecommunication, which are longer; padding is zeros.
                if size - place >= 16 or not any(header):
                    return
                length = size
            elif header[7:8] == b"\x02" and len(header) == 16:
                length = int.from_bytes(header[8:], "big")
            else:
                length = int.from_bytes(header[4:7], "big")
                # Messages of edition 1 of more than 8 MB have another count of bytes, which depends on their sections.
                if header[7:8] != b"\x01" or length >= 0x800000:
                    return
            file.seek(max(0, place + length - 4))
            if place + length > size or file.read(4) != b"7777":
                raise DataError(
                    f"{path} is damaged or incomplete: the message at byte {place} does not end within its {size} "
                    f"bytes; {_REMEDY}"
                )
            place += length


def check_netcdf_file(path: Path) -> None:
    """Refuses a file that is not NetCDF, and a classic file (CDF-1, 2 or 5) that is shorter than its header says.

    The length of NetCDF-4 is compared by HDF5 itself. Call it before anything else opens the file.
    """
    if not path.is_file():
        raise DataError(f"{path} is not a regular file, but a pipe, device or folder")
    length = path.stat().st_size
    if length == 0:
        raise DataError(f"{path} is empty; {_REMEDY}")
    with path.open("rb") as file:
        start = file.read(8)
        if start == b"\x89HDF\r\n\x1a\n":
            return
        if start[:3] != b"CDF" or start[3:4] not in (b"\x01", b"\x02", b"\x05"):
            raise DataError(f"{path} is not a NetCDF file: it begins with {start!r}; {_REMEDY}")
        file.seek(4)
        try:
            expected = _classic_length(file, start[3], length)
        except EOFError:
            raise DataError(f"{path} ends inside its header after {length} bytes; {_REMEDY}") from None
        except (IndexError, ValueError) as error:
            raise DataError(f"{path}: its header is damaged ({error}); {_REMEDY}") from None
    if expected is None:
        raise DataError(f"{path}: it was written as a stream, without the number of its records; copy it by nccopy")
    if length < expected:
        raise DataError(f"{path} is truncated: its header declares {expected} bytes, it has {length}; {_REMEDY}")


def _classic_length(file: BinaryIO, version: int, length: int) -> int | None:
    """The length by the file format specification: records, dimensions, attributes, variables with their offsets.

    Numbers are big-endian; CDF-5 counts and sizes have 8 bytes, CDF-2 and 5 offsets have 8.
    """

    def number(is_long: bool) -> int:
        data = file.read(8 if is_long else 4)
        if len(data) < (8 if is_long else 4):
            raise EOFError
        return int.from_bytes(data, "big")

    def count() -> int:
        return number(version == 5)

    def skip(num_bytes: int) -> None:
        # Padded to four bytes. Beyond the end of the file, seek would not complain.
        if (target := file.tell() + num_bytes + (-num_bytes) % 4) > length:
            raise EOFError
        file.seek(target)

    def entries(tag: int) -> Iterator[None]:
        found, size = number(False), count()
        if found not in (0, tag) or (found == 0 and size != 0):
            raise ValueError(f"list tag {found} with {size} entries where {tag} belongs")
        for _ in range(size):
            skip(count())  # the name
            yield

    def type_size() -> int:
        kind = number(False)
        if kind not in range(1, 12):
            raise ValueError(f"no type has the number {kind}")
        # byte, char, short, int, float, double, then the unsigned and 64-bit ones of CDF-5.
        return (1, 1, 2, 4, 4, 8, 1, 2, 4, 8, 8)[kind - 1]

    def skip_attributes() -> None:
        for _ in entries(12):
            skip(type_size() * count())

    num_records = count()
    dimensions = [count() for _ in entries(10)]
    skip_attributes()
    ends, records = [0], []
    for _ in entries(11):
        lengths = [dimensions[count()] for _ in range(count())]
        skip_attributes()
        size = type_size()
        count()  # vsize, which cannot hold large sizes in CDF-1 and 2; the dimensions say it exactly
        begin = number(version != 1)
        # The record dimension has length 0 and comes first.
        if lengths and lengths[0] == 0:
            records.append((begin, size * prod(lengths[1:])))
        else:
            ends.append(begin + size * prod(lengths))
    if records and num_records == (2**64 - 1 if version == 5 else 2**32 - 1):
        return None
    # Records of all variables follow each other, each padded to four bytes, unless there is one such variable only.
    sizes = [size for _, size in records]
    stride = sizes[0] if len(sizes) == 1 else sum(size + (-size) % 4 for size in sizes)
    ends += [begin + (num_records - 1) * stride + size for begin, size in records if num_records]
    # The padding after the very last value may be missing; the values may not.
    return max(file.tell(), *ends)


def check_zarr_store(path: Path, group: str = "") -> tuple[Any, bool]:
    """Checks the coordinates of a group and all its arrays of two dimensions or more; whether it is consolidated."""
    import zarr
    from zarr.storage import ZipStore

    store: Any = path if path.is_dir() else ZipStore(path, mode="r")
    arrays = dict(zarr.open_group(store, path=group, mode="r").arrays())
    files = _StoreFiles(path, group)
    for name, array in arrays.items():
        _check_coordinate(files, name, array)
    for name, array in arrays.items():
        if len(array.shape) >= 2:
            _check_array(files, name, array)
    return store, files.is_consolidated()


class _StoreFiles:
    """Files of a group in a folder or a zip file."""

    def __init__(self, path: Path, group: str = "") -> None:
        self.path, self._prefix = path, f"{group.strip('/')}/".lstrip("/")
        self._zip = None if path.is_dir() else zipfile.ZipFile(path)

    def size(self, key: str) -> int:
        with suppress(KeyError, FileNotFoundError, NotADirectoryError):
            if self._zip is None:
                return (self.path / self._prefix / key).stat().st_size
            return self._zip.getinfo(self._prefix + key).file_size
        return 0

    def is_consolidated(self) -> bool:
        with suppress(OSError, ValueError):
            return "consolidated_metadata" in json.loads((self.path / "zarr.json").read_text())
        return self._zip is None and (self.path / ".zmetadata").exists()


def _check_coordinate(files: _StoreFiles, name: str, array: Any) -> None:
    """Refuses CF attributes that are not texts, and a coordinate that lacks a chunk.

    The values of a coordinate differ: a writer that leaves out chunks of fill values leaves out one of a single value
    at most.
    """
    for word in ("standard_name", "axis", "units", "calendar", "grid_mapping", "bounds", "coordinates", "cf_role"):
        if not isinstance(value := array.attrs.get(word, ""), str):
            raise DataError(f"{files.path}: the attribute {word} of {name} must be a text, got {str(value)[:100]}")
    # Version 2 of the format has no names of dimensions; xarray keeps them in an attribute.
    names = getattr(array.metadata, "dimension_names", None) or array.attrs.get("_ARRAY_DIMENSIONS", ())
    if isinstance(names, (list, tuple)) and tuple(names) == (name,):
        (length,), (chunk,) = array.shape, array.shards or array.chunks
        for number in range(-(-length // chunk)):
            key = f"{name}/{array.metadata.encode_chunk_key((number,))}"
            if min(chunk, length - number * chunk) > 1 and not files.size(key):
                raise DataError(f"{files.path}: the coordinate {name} lacks the chunk {key}; copy it again")


def _check_array(files: _StoreFiles, name: str, array: Any) -> None:
    """Refuses an array of which a chunk, or a shard of chunks, is missing or empty.

    The library reads such a chunk as fill values. It was lost, or held fill values only and the writer left it out,
    which is the default of Zarr 3 (`write_empty_chunks=False`); nothing in the store tells one from the other. But all
    chunks of a place, along the first axis, may be missing, if missing values are NaN: land in a field of the sea.
    """
    outer = tuple(array.shards or array.chunks)
    counts = [-(-length // chunk) for length, chunk in zip(array.shape, outer, strict=True)]
    if prod(counts) > _MOST_CHUNKS:
        raise DataError(f"{files.path}: {name} claims {prod(counts):,} chunks; its metadata are damaged, copy it again")

    keys = {
        position: f"{name}/{array.metadata.encode_chunk_key(position)}"
        for position in itertools.product(*map(range, counts))
    }
    written = {position for position, key in keys.items() if files.size(key)}
    # A place of a single chunk may have been lost, and so may all places.
    is_nan = array.fill_value is not None and array.fill_value != array.fill_value
    may_have_mask = is_nan and array.shards is None and len(counts) >= 3 and counts[0] > 1 and written
    places = {position[1:] for position in written if may_have_mask}
    lost: list[str] = []
    for position, key in keys.items():
        if position not in written and (not may_have_mask or position[1:] in places):
            lost.append(key)
    if lost:
        raise DataError(
            f"{files.path}: {name} lacks {len(lost)} chunks of its {prod(counts)} chunk files, the first {lost[0]}, "
            "which would read as fill values; copy the store again, or, if its writer left out chunks of fill values, "
            "write it with write_empty_chunks=True"
        )


def checksum(content: dict[str, Any]) -> str:
    """SHA-256 of plain values; floats count with all their digits."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
