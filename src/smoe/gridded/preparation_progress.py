"""What reports the progress of a preparation."""

from __future__ import annotations

from typing import Protocol


class PreparationReporter(Protocol):
    """Reports how far a preparation has come."""

    def notify(self, text: str) -> None:
        """Reports a message."""
        ...

    def begin(self, total: int, done: int) -> None:
        """Reports how many parts are to be read, and how many of them were read before."""
        ...

    def advance(self, text: str) -> None:
        """Reports that one more part is done, and which."""
        ...
