"""A lock that ends with the process that holds it, however that process ends."""

from __future__ import annotations

import os
import socket
import warnings
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Self


class LockedError(Exception):
    """Another process holds the lock.

    Args:
        holder: That process in words, such as `process 71` or `process 71 on node4`.
    """

    def __init__(self, holder: str) -> None:
        super().__init__(f"{holder} has the lock")
        self.holder = holder


class FileLock:
    """An exclusive lock on a file; a context manager that creates the file and removes it at the end.

    The system releases the lock when the process ends, also after a kill: a file that is left behind locks nothing. On
    a file system without locks, a warning is issued and nothing is locked.

    Args:
        path: File to lock, in a directory that exists.
        warns: Issue that warning.

    Attributes:
        is_held: Whether the lock keeps others out; false on a file system without locks.
    """

    def __init__(self, path: Path, *, warns: bool = True) -> None:
        self.path = path
        self.is_held = False
        self._warns = warns
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
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)
        except OSError:
            # A disk that is full, for example: the lock must not outlive the error.
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Releases the lock; does nothing in a forked process."""
        if self._descriptor is not None:
            with suppress(OSError):
                # A folder that was removed and made anew may have the lock of another process at this path.
                if _is_at(self.path, self._descriptor):
                    self.path.unlink()
            self._close()

    def _open_locked(self) -> int:
        import fcntl

        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.is_held = True
        except BlockingIOError:
            holder = _read_holder(descriptor)
            os.close(descriptor)
            raise LockedError(holder) from None
        except OSError as error:
            if self._warns:
                warnings.warn(
                    f"{self.path} cannot be locked ({error.strerror}): make sure that no other process uses it",
                    stacklevel=3,
                )
        return descriptor

    def _close(self) -> None:
        self.is_held = False
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _read_holder(descriptor: int) -> str:
    """The process that holds a lock, in words; its host too if that is another one."""
    pid, _, host = os.pread(descriptor, 300, 0).decode(errors="replace").strip().partition(" ")
    if not pid.isdigit():
        # The lock was taken just now.
        return "another process"
    return f"process {pid}" if host in ("", socket.gethostname()) else f"process {pid} on {host}"


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
