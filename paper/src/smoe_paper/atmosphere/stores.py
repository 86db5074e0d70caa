"""What the stores of weather and of ENS-10 share."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Set
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from smoe._files import FileLock, LockedError, remove_leftovers
from smoe.errors import DataError

DTYPE = np.dtype("<f4")
_BYTES_PER_PIECE = 1 << 24


def crc32_of_rows(path: Path, offset: int, num_bytes: int) -> int:
    """The checksum of a part of a file, read in pieces."""
    crc = 0
    with path.open("rb") as file:
        file.seek(offset)
        while num_bytes:
            piece = file.read(min(num_bytes, _BYTES_PER_PIECE))
            if not piece:
                raise DataError(f"{path} ends {num_bytes:,} bytes too early")
            crc = zlib.crc32(piece, crc)
            num_bytes -= len(piece)
    return crc


_LOCK_FILE = "lock"


@contextmanager
def only_process(output: Path, our_files: Set[str]) -> Iterator[None]:
    """Makes the folder, keeps every other process out of it, and removes what a killed one left half-written.

    Args:
        output: the store's folder.
        our_files: names that may be in it.

    Raises:
        DataError: for a file in the folder's place, for other files in it, or if another process writes it.
    """
    if output.exists() and not output.is_dir():
        raise DataError(f"{output} is a file: choose a folder for the store")
    output.mkdir(parents=True, exist_ok=True)
    # Files that a kill left half-written begin with a dot.
    known = {*our_files, _LOCK_FILE}
    foreign = sorted(path.name for path in output.iterdir() if path.name not in known and path.name[0] != ".")
    if foreign:
        raise DataError(f"{output} holds other files, such as {foreign[0]}: choose an empty folder for the store")
    with ExitStack() as stack:
        try:
            stack.enter_context(FileLock(output / _LOCK_FILE))
        except LockedError as error:
            raise DataError(f"{error.holder} is preparing {output}: wait for it, or stop it") from None
        except OSError as error:
            raise DataError(f"{output / _LOCK_FILE} cannot be written: {error.strerror}") from None
        remove_leftovers(output / name for name in our_files)
        yield


def describe_years(years: tuple[int, ...]) -> str:
    """Years as ranges: `1979-1981, 1983`."""
    parts: list[list[int]] = []
    for year in years:
        if parts and parts[-1][1] == year - 1:
            parts[-1][1] = year
        else:
            parts.append([year, year])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts) or "none"
