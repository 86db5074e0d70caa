"""Whether a store fits on its disk."""

from __future__ import annotations

import shutil
from pathlib import Path

from smoe.errors import DataError


def check_disk(
    output: Path,
    num_bytes: int,
    files: tuple[str, ...],
    remedy: str,
) -> str:
    """Checks that a store fits on its disk, and returns what it takes, in words.

    Args:
        output: Folder of the store.
        num_bytes: Bytes of its files when they are whole.
        files: Names of the files; the bytes they take already are not needed again.
        remedy: What makes the store smaller.

    Raises:
        DataError: If the disk has less.
    """
    paths = [output / name for name in files if (output / name).is_file()]
    # What is allocated, and not the size: a file can have a size without the room.
    present = min(sum(path.stat().st_blocks * 512 for path in paths), num_bytes)
    needed = num_bytes - present
    free = shutil.disk_usage(output).free
    size, room = describe_size(num_bytes), describe_size(free)
    if needed > free:
        raise DataError(
            f"the store takes {size}, of which {describe_size(needed)} are not there yet, and the disk of {output} has "
            f"{room} free: choose another disk, {remedy}"
        )
    return f"the store takes {size} ({room} are free)"


def free_space(folder: Path) -> str:
    """What is free on the disk of a folder, in words."""
    return describe_size(shutil.disk_usage(folder).free)


def describe_size(num_bytes: int) -> str:
    """A number of bytes in GB, or in MB where that would be a small fraction."""
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"
