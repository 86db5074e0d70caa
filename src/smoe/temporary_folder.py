"""Temporary folders that a killed process does not leave for ever: the next one that makes a folder removes them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from smoe.file_lock import FileLock, LockedError

_LOCK_FILE = "lock"


@contextmanager
def temporary_folder(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """Makes a folder that is removed at the end, after it removed those whose process was killed.

    Args:
        prefix: Begin of the folder's name, which only folders of this function have.
        parent: Folder in which it is made, which must exist; that of the system for temporary files if None.

    Raises:
        OSError: If the folder cannot be made.
    """
    parent = Path(tempfile.gettempdir()) if parent is None else parent
    remove_abandoned(prefix, parent)
    with ExitStack() as stack:
        folder = _make_locked(prefix, parent, stack)
        yield folder


def _make_locked(prefix: str, parent: Path, stack: ExitStack) -> Path:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        try:
            # The lock ends with this process, however it ends.
            stack.enter_context(FileLock(folder / _LOCK_FILE, warns=False))
        except FileNotFoundError:
            # Another process took the empty folder for an abandoned one.
            continue
        return folder


def remove_abandoned(prefix: str, parent: Path) -> None:
    """Removes the folders of `temporary_folder` whose process has ended; on a file system without locks, none."""
    with suppress(OSError):
        for folder in [path for path in parent.iterdir() if path.name.startswith(prefix)]:
            with suppress(OSError, LockedError):
                _remove_if_abandoned(folder)


def _remove_if_abandoned(folder: Path) -> None:
    if (folder / _LOCK_FILE).is_file():
        with FileLock(folder / _LOCK_FILE, warns=False) as lock:
            if lock.is_held:
                shutil.rmtree(folder, ignore_errors=True)
    else:
        # Its process was killed before it locked the folder, which is empty, or is about to lock it.
        folder.rmdir()
