"""Files that are written whole or not at all: a kill at any moment leaves the old file or the new one."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO


def write_atomically(path: Path, write: Callable[[BinaryIO], object], *, make_folder: bool = True) -> None:
    """Writes a temporary file beside `path`, brings it to disk, and gives it its name only then.

    Temporary files that killed processes left beside `path` are removed first.

    Args:
        path: File to write.
        write: Function that writes the content to an open file.
        make_folder: Create the folder of the file if it does not exist. Otherwise a missing folder is an error.

    Raises:
        OSError: If the file cannot be written. The file that was there before is intact.
    """
    if make_folder:
        path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers([path])
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        with _open_locked(temporary) as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def remove_leftovers(paths: Iterable[Path]) -> None:
    """Removes the temporary files that `write_atomically` left beside these files when its process was killed.

    Files that another process is writing stay. On a file system without locks, which of them are in use is not known,
    and all stay.

    Args:
        paths: Files that `write_atomically` writes.
    """
    for path in paths:
        with suppress(OSError):
            begin = f".{path.name}."
            for name in os.listdir(path.parent):
                if name.startswith(begin) and name.endswith(".tmp"):
                    _remove_if_abandoned(path.parent / name)


def _open_locked(temporary: Path) -> BinaryIO:
    """Opens a new file and locks it, which tells other processes that it is no leftover."""
    while True:
        file = temporary.open("xb")
        _try_lock(file.fileno())
        if temporary.exists():
            return file
        # Another process took it for a leftover before it was locked.
        file.close()


def _remove_if_abandoned(temporary: Path) -> None:
    with suppress(OSError), temporary.open("rb") as file:
        if _try_lock(file.fileno()):
            temporary.unlink(missing_ok=True)


def _try_lock(descriptor: int) -> bool:
    """Whether the file is locked for this process, until it is closed."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True
