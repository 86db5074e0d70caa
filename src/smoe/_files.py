"""Files that a kill at any moment leaves whole, locks that end with their process, and folders that do not outlive it.

What another user left under the same name is neither opened nor removed: no link is followed, and nothing is truncated.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import stat
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Self

_LOCK_FILE = "lock"
# A pipe is not waited for, and a link not followed.
_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


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

    Raises:
        LockedError: If another process, or another lock of this process, holds it.
        OSError: If the file cannot be created, or is a link, a pipe, or a file of another user.
    """

    def __init__(self, path: Path, *, warns: bool = True) -> None:
        self.path, self.is_held, self._warns = path, False, warns
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        while True:
            self._descriptor = _open_own(self.path, create=True)
            self.is_held = self._try_lock(self._descriptor)
            if _is_at(self.path, self._descriptor):
                break
            # The process that held the lock has removed the file in between.
            self._close()
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
        if self._descriptor is not None:
            with suppress(OSError):
                # A folder that was removed and made anew may have the lock of another process at this path.
                if _is_at(self.path, self._descriptor):
                    self.path.unlink()
            self._close()

    def _try_lock(self, descriptor: int) -> bool:
        try:
            return _lock(descriptor)
        except BlockingIOError:
            pid, _, host = os.pread(descriptor, 300, 0).decode(errors="replace").partition("\n")[0].partition(" ")
            self._close()
            if not pid.isdigit():
                # The lock was taken just now.
                raise LockedError("another process") from None
            raise LockedError(f"process {pid}" + (f" on {host}" if host != socket.gethostname() else "")) from None
        except OSError as error:
            if self._warns:
                warnings.warn(
                    f"{self.path} cannot be locked ({error.strerror}): make sure that no other process uses it",
                    stacklevel=3,
                )
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
    if not _is_own(folder.lstat(), stat.S_IFDIR):
        return
    if not os.path.lexists(folder / _LOCK_FILE):
        # Its process was killed before it locked the folder, which is empty, or is about to lock it.
        folder.rmdir()
        return
    with FileLock(folder / _LOCK_FILE, warns=False) as lock:
        if lock.is_held:
            shutil.rmtree(folder, ignore_errors=True)


def write_atomically(path: Path, write: Callable[[BinaryIO], object], *, make_folder: bool = True) -> None:
    """Writes a temporary file beside `path`, brings it to disk, and gives it its name only then.

    Temporary files that killed processes left beside `path` are removed first.
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

    Files that another process is writing stay; on a file system without locks, all of them.
    """
    for path in paths:
        with suppress(OSError):
            begin = f".{path.name}."
            for name in os.listdir(path.parent):
                if name.startswith(begin) and name.endswith(".tmp"):
                    _unlink_if_abandoned(path.parent / name)


def _open_locked(temporary: Path) -> BinaryIO:
    """Opens a new file and locks it, which tells other processes that it is no leftover."""
    while True:
        file = temporary.open("xb")
        with suppress(OSError):
            _lock(file.fileno())
        if temporary.exists():
            return file
        # Another process took it for a leftover before it was locked.
        file.close()


def _unlink_if_abandoned(temporary: Path) -> None:
    with suppress(OSError), os.fdopen(_open_own(temporary), "rb") as file:
        _lock(file.fileno())
        temporary.unlink(missing_ok=True)


def _lock(descriptor: int) -> bool:
    """Locks a file until it is closed; raises BlockingIOError if another process has it."""
    import fcntl

    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return True


def _open_own(path: Path, *, create: bool = False) -> int:
    """Opens a plain file of this user without changing it."""
    while True:
        if create:
            with suppress(FileExistsError):
                return os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            if not _is_own(path.lstat(), stat.S_IFREG):
                raise PermissionError(1, "it is a link, or no file of this user; remove it", str(path))
            descriptor = os.open(path, _FLAGS)
        except FileNotFoundError:
            if create:
                continue
            raise
        if _is_own(os.fstat(descriptor), stat.S_IFREG):
            return descriptor
        os.close(descriptor)


def _is_own(status: os.stat_result, kind: int) -> bool:
    has_one_name = kind != stat.S_IFREG or status.st_nlink <= 1
    return stat.S_IFMT(status.st_mode) == kind and status.st_uid == os.geteuid() and has_one_name


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
