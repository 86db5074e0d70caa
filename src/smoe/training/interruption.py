"""SIGINT, SIGTERM and SIGHUP as a request to stop after the current step."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Self

from smoe.child_processes import STOPS


class Interruption:
    """Records the first signal in `signal_number` while it is active; a second SIGINT interrupts at once.

    Signals that the process ignores, such as SIGHUP under `nohup`, stay ignored.

    Attributes:
        signal_number: Number of the signal; None before one was received.
    """

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._previous: dict[int, object] = {}

    def __enter__(self) -> Self:
        for number in STOPS:
            if signal.getsignal(number) is signal.SIG_IGN:
                continue
            try:
                self._previous[number] = signal.signal(number, self._note)
            except ValueError:
                # Only the main thread may handle signals; in others they keep their meaning.
                break
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

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
