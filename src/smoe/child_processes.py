"""Processes that a command starts: they leave signals to it, and end with it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SECONDS_BETWEEN_LOOKS = 1.0


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


def follow_parent(parent: int) -> None:
    """Ends this process soon after the one that started it has ended, also if that was killed.

    Args:
        parent: Number of that process.
    """
    threading.Thread(target=_watch, args=(parent,), name="smoe-parent", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    os._exit(1)
