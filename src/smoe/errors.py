"""What is raised about data, options, packages and signals, and what messages say. Imports nothing heavy."""

from __future__ import annotations

import difflib
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

# The extra of pyproject.toml that installs a package.
EXTRAS = {
    **dict.fromkeys(("accelerate", "tyro", "rich", "matplotlib", "xarray", "netCDF4", "zarr", "dask"), "fit"),
    **dict.fromkeys(("cf_xarray", "scipy", "safetensors"), "fit"),
    "cfgrib": "weather",
    "eccodes": "weather",
}


class SmoeError(Exception):
    """Base of what smoe raises about a user's data, options, recipes and packages."""


class DataError(SmoeError, ValueError):
    """Data are not what they should be: says what was found, where, what was expected, and what to do."""


class OptionError(SmoeError, ValueError, TypeError):
    """An option that does not exist, or has a value that it cannot have."""


class MissingPackageError(SmoeError, ModuleNotFoundError):
    """An optional package is not installed: says what needs it, and how to install it."""


def missing_package(user: str, package: str) -> MissingPackageError:
    """The error that names the extra which installs a package."""
    extra = EXTRAS[package]
    return MissingPackageError(
        f'{user} needs {package}, which the extra {extra!r} installs: pip install ".[{extra}]" in a checkout of smoe',
        name=package,
    )


@contextmanager
def naming_extras(user: str) -> Iterator[None]:
    """Turns the failed import of an optional package into an error that names its extra."""
    try:
        yield
    except MissingPackageError:
        raise
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        raise missing_package(user, package) from error


def printable(text: str) -> str:
    """A text in one line; codes that a terminal would obey are spelled out."""
    return "".join(
        character if character.isprintable() else repr(character)[1:-1] for character in " ".join(text.split())
    )


def suggest(name: str, known: Iterable[str], *, cutoff: float = 0.6, otherwise: str = "there are") -> str:
    """`did you mean 'train'?`, or, if nothing is near, all the names there are."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=cutoff)
    return f"did you mean {near[0]!r}?" if near else f"{otherwise} {', '.join(names)}"


_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP, as an exception: what a command has begun is cleaned up on its way out."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def stopped_code(stop: KeyboardInterrupt) -> int:
    """The exit code of a command that was stopped by a signal."""
    return 128 + (stop.number if isinstance(stop, Terminated) else signal.SIGINT)


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP raise `Terminated`, unless the process ignores or handles them, as SIGHUP under `nohup`."""

    def stop(number: int, _: FrameType | None) -> None:
        raise Terminated(number)

    is_main = threading.current_thread() is threading.main_thread()
    handled = [n for n in (signal.SIGTERM, signal.SIGHUP) if is_main and signal.getsignal(n) is signal.SIG_DFL]
    for number in handled:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def leaving_signals() -> Iterator[None]:
    """Blocks signals in child processes started inside the context.

    A terminal and a scheduler send signals to all processes of a group. A process that was started with a signal
    blocked never receives it, from its first moment on. Here the signals are received at the end of the context.
    """
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


class Interrupted(Exception):
    """Training was stopped by a signal, after its state was stored."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name}")
        self.signal_number = signal_number


class Interruption:
    """While active, a signal is a request to stop after the current step; a second SIGINT interrupts at once.

    Signals that the process ignores, such as SIGHUP under `nohup`, stay ignored. `signal_number` is that of the first
    signal; None before one was received.
    """

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        # Only the main thread may handle signals; in others they keep their meaning.
        if threading.current_thread() is threading.main_thread():
            for number in _STOPS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.signal_number is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal_number = number
