"""Files that a kill at any moment leaves whole, locks that end with their process, folders that do not outlive it.

What another user left under the same name is neither opened nor removed: no link is followed, and nothing is truncated.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Self, TypeVar

Item = TypeVar("Item")
Block = TypeVar("Block")

_LOCK_FILE = "lock"
# A pipe is not waited for, and a link not followed.
_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class LockedError(Exception):
    """Another process, such as `process 71` or `process 71 on node4`, holds the lock."""

    def __init__(self, holder: str) -> None:
        super().__init__(f"{holder} has the lock")
        self.holder = holder


class FileLock:
    """An exclusive lock on a file; a context manager that creates the file and removes it at the end.

    The system releases the lock when the process ends, also after a kill: a file that is left behind locks nothing. On
    a file system without locks, a warning is issued if it `warns`, nothing is locked, and `is_held` is false.

    Raises:
        LockedError: If another process, or another lock of this process, holds it.
        OSError: If the file cannot be created, or is a link, a pipe, or a file of another user.
    """

    def __init__(self, path: Path, *, warns: bool = True) -> None:
        self.path, self.is_held, self._warns = path, False, warns
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        self._descriptor = _open_own(self.path)
        self.is_held = self._try_lock(self._descriptor)
        if not self._is_at_path():
            # The process that held the lock has removed the file in between.
            self._close()
            return self.__enter__()
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
        with suppress(OSError):
            # A folder that was removed and made anew may have the lock of another process at this path.
            if self._is_at_path():
                self.path.unlink()
        self._close()

    def _try_lock(self, descriptor: int) -> bool:
        import fcntl

        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            pid, _, host = os.pread(descriptor, 300, 0).decode(errors="replace").partition("\n")[0].partition(" ")
            self._close()
            where = "" if host == socket.gethostname() else f" on {host}"
            # Without a number, the lock was taken just now.
            raise LockedError(f"process {pid}{where}" if pid.isdigit() else "another process") from None
        except OSError as error:
            if self._warns:
                message = f"{self.path} cannot be locked ({error.strerror}): make sure that no other process uses it"
                warnings.warn(message, stacklevel=3)
            return False

    def _is_at_path(self) -> bool:
        with suppress(FileNotFoundError):
            return self._descriptor is not None and os.path.samestat(self.path.lstat(), os.fstat(self._descriptor))
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
    """Writes a file in a temporary folder beside `path`, brings it to disk, and gives it its name only then."""
    if make_folder:
        path.parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder(f".{path.name}.", path.parent) as folder, (folder / "content").open("xb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
        os.replace(folder / "content", path)


def read_ahead(read: Callable[[Item], Block], items: Iterable[Item]) -> Iterator[tuple[Item, Block]]:
    """Yields `item` and `read(item)`; a thread reads one block ahead, so that two blocks are held at once."""
    with ThreadPoolExecutor(1, thread_name_prefix="smoe-read") as pool:
        waiting: tuple[Item, Future[Block]] | None = None
        for item in items:
            following = (item, pool.submit(read, item))
            if waiting is not None:
                yield waiting[0], waiting[1].result()
            waiting = following
        if waiting is not None:
            yield waiting[0], waiting[1].result()


def reason_not_to_write(path: Path) -> str | None:
    """Why nothing can be made at a path, such as `runs is a file`; None if it can."""
    folder = path
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        return f"{folder} is a file"
    return None if os.access(folder, os.W_OK | os.X_OK) else f"{folder} is read-only for this user"


def _open_own(path: Path) -> int:
    """Opens or creates a plain file of this user, without changing one that is there."""
    while True:
        with suppress(FileExistsError):
            return os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o644)
        with suppress(FileNotFoundError):
            if not _is_own(path.lstat(), stat.S_IFREG):
                raise PermissionError(1, "it is a link, or no file of this user; remove it", str(path))
            descriptor = os.open(path, _FLAGS)
            if _is_own(os.fstat(descriptor), stat.S_IFREG):
                return descriptor
            os.close(descriptor)


def _is_own(status: os.stat_result, kind: int) -> bool:
    has_one_name = kind != stat.S_IFREG or status.st_nlink <= 1
    return stat.S_IFMT(status.st_mode) == kind and status.st_uid == os.geteuid() and has_one_name
