"""A lock that ends with the process that holds it, however that process ends."""

from __future__ import annotations

import os
import warnings
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Self


class LockedError(Exception):
    """Another process holds the lock.

    Args:
        pid: Number of that process; None if it is not known.
    """

    def __init__(self, pid: int | None) -> None:
        super().__init__("another process has the lock" if pid is None else f"process {pid} has the lock")
        self.pid = pid


class FileLock:
    """An exclusive lock on a file; a context manager that creates the file and removes it at the end.

    The system releases the lock when the process ends, also after a kill: a file that is left behind locks nothing. On
    a file system without locks, a warning is issued and nothing is locked.

    Args:
        path: File to lock, in a directory that exists.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        """Takes the lock.

        Raises:
            LockedError: If another process, or another lock of this process, holds it.
            OSError: If the file cannot be created.
        """
        while True:
            descriptor = self._open_locked()
            if _is_at(self.path, descriptor):
                break
            # The process that held the lock has removed the file in between.
            os.close(descriptor)
        self._descriptor = descriptor
        # Processes that this one forks, such as those that read data, share the lock until they close it, and would
        # keep it if this one was killed.
        close = weakref.WeakMethod(self._close)
        os.register_at_fork(after_in_child=lambda: None if (method := close()) is None else method())
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        return self

    def __exit__(self, *_: object) -> None:
        """Releases the lock; does nothing in a forked process."""
        if self._descriptor is not None:
            with suppress(OSError):
                self.path.unlink()
            self._close()

    def _open_locked(self) -> int:
        import fcntl

        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(descriptor, 32, 0).strip()
            os.close(descriptor)
            raise LockedError(int(pid) if pid.isdigit() else None) from None
        except OSError as error:
            warnings.warn(f"{self.path} cannot be locked ({error.strerror}): start one run only in it", stacklevel=3)
        return descriptor

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
