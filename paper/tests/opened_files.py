"""Names of the files that Python code opens or lists, by an audit hook."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_recorders: list[list[str]] = []
_EVENTS = ("open", "os.listdir", "os.scandir", "os.mkdir", "os.rename", "os.remove", "os.symlink", "os.link")


@contextmanager
def opened_files() -> Iterator[list[str]]:
    """Records what is opened, listed, made, renamed or removed within the block."""
    found: list[str] = []
    _recorders.append(found)
    try:
        yield found
    finally:
        _recorders.remove(found)


def _hear(event: str, arguments: tuple[object, ...]) -> None:
    if _recorders and event in _EVENTS and isinstance(arguments[0], (str, bytes, os.PathLike)):
        for found in _recorders:
            found.append(os.path.abspath(os.fsdecode(arguments[0])))


# A hook cannot be removed: it hears nothing outside of the block.
sys.addaudithook(_hear)
