"""Reads whole files, compressed or not, and compares them with the published ones."""

from __future__ import annotations

import gzip
import hashlib
import stat
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

from smoe.errors import DataError

_GZIP_MAGIC = b"\x1f\x8b"


def read_content(path: Path) -> bytes:
    """Returns the content of a file, decompressed if it is compressed by gzip, whatever its name.

    Raises:
        DataError: If the file cannot be read, or its compression is damaged.
    """
    try:
        # A pipe would be waited for, and a device may never end.
        if not stat.S_ISREG(path.stat().st_mode):
            raise DataError(f"{path} is not a regular file, but a pipe, device or folder")
        with path.open("rb") as file:
            is_compressed = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
        return gzip.decompress(path.read_bytes()) if is_compressed else path.read_bytes()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is damaged: {error}; get the file again") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None


def check_published(
    path: Path,
    name: str,
    content: bytes,
    checksums: Mapping[str, Mapping[str, str]],
    title: str,
    *,
    verify: bool,
    notify: Callable[[str], None],
) -> None:
    """Compares a file with the published one.

    Args:
        path: File to compare.
        name: Name of the published file.
        content: Content of the file, uncompressed.
        checksums: SHA-256 or MD5 checksums, by title of the set and name of the file.
        title: Title of the set that the file should belong to.
        verify: Refuse a file that differs; otherwise `notify` receives a message.
        notify: Receives messages.

    Raises:
        DataError: If the file belongs to another set or, with `verify`, differs from the published one.
    """
    expected = checksums[title].get(name)
    if expected is None:
        return
    found = _digest(content, expected)
    if found == expected:
        return
    for other, files in checksums.items():
        if files.get(name) == found:
            raise DataError(f"{path} is the file of {other}, not of {title}; name the folder of {title}")
    text = f"{path} is not the published {name} of {title} (its checksum begins with {found[:8]}, not {expected[:8]})"
    if verify:
        raise DataError(f"{text}: get it again, or, for images of your own in this format, give --data.verify False")
    notify(f"{text}: used as it is")


def _digest(content: bytes, like: str) -> str:
    """Returns a checksum of the same kind as another: MD5 has 32 digits, SHA-256 has 64."""
    algorithm = "md5" if len(like) == 32 else "sha256"
    return hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()
