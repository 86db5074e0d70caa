"""Signals: exceptions in a command, a request to stop in a training, and nothing in the processes that they start."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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

    def stop(number: int, frame: FrameType | None) -> None:
        del frame
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
def leaving_signals(signals: tuple[signal.Signals, ...] = STOPS) -> Iterator[None]:
    """Let the processes that are started within leave signals to this one.

    A terminal and a scheduler send signals to all processes of a group. A process that was started with a signal
    blocked never receives it, from its first moment on. Here the signals are received at the end of the context.
    """
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


class Interruption:
    """While active, a signal is a request to stop after the current step; a second SIGINT interrupts at once.

    Signals that the process ignores, such as SIGHUP under `nohup`, stay ignored.

    Attributes:
        signal_number: Number of the first signal; None before one was received.
    """

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        # Only the main thread may handle signals; in others they keep their meaning.
        if threading.current_thread() is threading.main_thread():
            for number in STOPS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.signal_number is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal_number = number


class Interrupted(Exception):
    """Training was stopped by a signal, after its state was stored."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name}")
        self.signal_number = signal_number
