"""What a person sees while a store is prepared."""

from __future__ import annotations

import sys
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class PrepareProgress:
    """A bar over the channels of all years, with the time left, and lines above it."""

    def __init__(self) -> None:
        self.console = Console(file=sys.stderr, highlight=False)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left:"),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            # A channel of a year takes seconds, and their speed is known only over many of them.
            speed_estimate_period=600,
        )
        self._task = self._bar.add_task("", start=False, visible=False)

    def __enter__(self) -> Self:
        # Where nobody watches, in a log file, a bar is noise.
        if self.console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self._bar.stop()

    def say(self, text: str) -> None:
        """Prints a line above the bar."""
        self.console.print(text, markup=False, soft_wrap=True)

    def begin(self, total: int, done: int) -> None:
        """Shows the bar."""
        self._bar.reset(self._task, total=total, completed=done, visible=True)

    def advance(self, text: str) -> None:
        """Moves the bar and says what is under way; in a log file, a line for each year."""
        self._bar.update(self._task, advance=1, description=text)
