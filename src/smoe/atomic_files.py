"""Files that are written whole or not at all: a kill at any moment leaves the old file or the new one."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO


def write_atomically(path: Path, write: Callable[[BinaryIO], object], *, make_folder: bool = True) -> None:
    """Writes a temporary file beside `path`, brings it to disk, and gives it its name only then.

    Args:
        path: File to write.
        write: Function that writes the content to an open file.
        make_folder: Create the folder of the file if it does not exist. Otherwise a missing folder is an error.

    Raises:
        OSError: If the file cannot be written. The file that was there before is intact.
    """
    if make_folder:
        path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def remove_leftovers(paths: Iterable[Path]) -> None:
    """Removes the temporary files that `write_atomically` left beside these files when its process was killed.

    Args:
        paths: Files that no other process is writing.
    """
    for path in paths:
        if path.parent.is_dir():
            for leftover in path.parent.glob(f".{path.name}.*.tmp"):
                leftover.unlink(missing_ok=True)
