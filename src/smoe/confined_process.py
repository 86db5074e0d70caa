"""Reads files in a process of its own: a library that crashes on a damaged file ends that process, and not this one.

One process serves all files, so that it is started once. It starts again after a crash, and files that were open are
opened again when they are next used. It ends with the process that started it.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

from smoe.child_processes import leaving_signals
from smoe.errors import DataError
from smoe.file_claims import largest_claim

_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from smoe.confined_process import serve; serve(int(sys.argv[1]))"
)

# Seconds of the processor that a request may take: a damaged file can make a reader run for ever.
_SECONDS, _SECONDS_PER_BYTE = 5.0, 5e-6


class ConfinedError(Exception):
    """What the reading library raised in its process."""


class ConfinedReader:
    """An object in the other process that reads one file.

    Args:
        path: The file. Reading it may take as much memory as `smoe.file_claims` allows.
        kind: Class of the object, as `module:Class`.
        *arguments: Arguments of its constructor, which are sent to the other process.

    Raises:
        DataError: If the file is a pipe or device, or the library ended its process, did not come to an end, or wanted
            more memory than the file may take.
        ConfinedError: If the library raised an error.
    """

    def __init__(self, path: Path, kind: str, *arguments: Any) -> None:
        self._path, self._kind, self._arguments = Path(path), kind, arguments
        self._number = next(_numbers)
        if not self._path.is_file():
            # A process that waits for a pipe uses no time of the processor, by which it would be ended.
            raise DataError(f"{path} is not a regular file, but a pipe, device or folder")
        self.get("__class__")

    def call(self, method: str, *arguments: Any) -> Any:
        """Calls a method of the object and returns its result."""
        return _server().ask(self._path, (self._number, self._kind, self._arguments, method, arguments))

    def get(self, attribute: str) -> Any:
        """Returns an attribute of the object; of `__class__`, nothing."""
        return _server().ask(self._path, (self._number, self._kind, self._arguments, attribute, None))

    def __del__(self) -> None:
        _closed.append(self._number)


class _Server:
    """The other process, and the connection to it."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def ask(self, path: Path, request: tuple[Any, ...]) -> Any:
        with self._lock:
            connection = self._connected()
            closed = [_closed.pop() for _ in range(len(_closed))]
            try:
                connection.send((closed, str(path), request))
                kind, value = connection.recv()
            except (EOFError, OSError):
                raise DataError(f"{path} cannot be read: {self._end()}") from None
            except BaseException:
                # An interrupt: the answer that is still to come must not be taken for that of the next request.
                self._kill()
                raise
        if kind == "result":
            return value
        if kind == "memory":
            raise DataError(
                f"{path} cannot be read: it wants more than {largest_claim(path) / 1e9:,.1f} GB of memory, which are "
                f"allowed for a file of {path.stat().st_size:,} bytes; it is damaged, copy or download it again"
            )
        raise DataError(value) if kind == "data" else ConfinedError(value)

    def end(self) -> None:
        """Ends the process, if it was started."""
        if self._connection is not None:
            self._end()

    def _kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._end()

    def _connected(self) -> Connection:
        if self._connection is None:
            ours, theirs = Pipe()
            # Isolated, so that no module of the working directory is imported.
            command = [sys.executable, "-I", "-c", _START, str(theirs.fileno()), json.dumps(sys.path)]
            # Signals that reach both processes are left to this one: the other ends when its connection does.
            with leaving_signals():
                self._process = subprocess.Popen(
                    command,
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                self._connection = cast(Connection, ours)
            theirs.close()
        return self._connection

    def _end(self) -> str:
        """Ends what is left of the process; returns how it ended."""
        assert self._process is not None
        assert self._connection is not None
        self._connection.close()
        code = self._process.wait()
        self._process = self._connection = None
        name = signal.Signals(-code).name if code < 0 else f"code {code}"
        if code == -signal.SIGPROF:
            return "the library that reads it did not come to an end, the file is damaged; copy or download it again"
        if code == -signal.SIGKILL:
            return "the process that reads it was killed from outside, perhaps for its memory"
        return f"the library that reads it ended its process ({name}), the file is damaged; copy or download it again"


# A number is used once, so that an object of an ended process is never mistaken for another.
_numbers = itertools.count()
_closed: list[int] = []
_servers: list[_Server] = []


def _server() -> _Server:
    """The server of this process; a forked process has one of its own."""
    if not _servers or _servers[-1].owner != os.getpid():
        # That of the process that forked stays in the list: it belongs to that process, and is not ended here.
        _servers.append(_Server())
    return _servers[-1]


@atexit.register
def _end_server() -> None:
    if _servers and _servers[-1].owner == os.getpid():
        _servers[-1].end()


def serve(descriptor: int) -> None:
    """What the other process does until its connection ends.

    Args:
        descriptor: File descriptor of the connection.
    """
    connection = Connection(descriptor)
    opened: dict[int, Any] = {}
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            closed, path, request = connection.recv()
            for number in closed:
                opened.pop(number, None)
            connection.send(_answer(opened, Path(path), *request))


def _answer(
    opened: dict[int, Any], path: Path, number: int, kind: str, made_of: tuple[Any, ...], name: str, arguments: Any
) -> tuple[str, Any]:
    try:
        module, _, class_name = kind.partition(":")
        make = getattr(importlib.import_module(module), class_name)
        with _bounded_time(path), _bounded_memory(path):
            if number not in opened:
                opened[number] = make(*made_of)
            value = getattr(opened[number], name)
            return "result", None if name == "__class__" else value if arguments is None else value(*arguments)
    except DataError as error:
        # A library that could not allocate its memory may have said so in words of its own.
        return ("memory", None) if isinstance(error.__cause__, MemoryError) else ("data", str(error))
    except MemoryError:
        return "memory", None
    except Exception as error:  # it is raised in the other process
        return "error", f"{type(error).__name__}: {error}"


@contextlib.contextmanager
def _bounded_time(path: Path) -> Iterator[None]:
    """Ends the process if a request takes too long."""
    signal.setitimer(signal.ITIMER_PROF, _SECONDS + path.stat().st_size * _SECONDS_PER_BYTE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)


@contextlib.contextmanager
def _bounded_memory(path: Path) -> Iterator[None]:
    """Bounds the memory that is taken while a file is read, where the system can."""
    try:
        import resource

        in_use = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        largest = in_use + largest_claim(path)
    except (ImportError, OSError):
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (largest if hard == resource.RLIM_INFINITY else min(largest, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
