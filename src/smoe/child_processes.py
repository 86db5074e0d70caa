"""Processes that a command starts leave signals to it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def leaving_signals(signals: tuple[signal.Signals, ...] = STOPS) -> Iterator[None]:
    """Lets the processes that are started within leave signals to this one.

    A terminal and a scheduler send signals to all processes of a group. A process that was started with a signal
    blocked never receives it, from its first moment on. Here the signals are received at the end of the context.

    Args:
        signals: Signals to block.
    """
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)
