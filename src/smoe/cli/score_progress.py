"""What a person sees while forecasts are made and scored."""

from __future__ import annotations

import sys
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn


class ScoreProgress:
    """A bar for each part of the work; called with what is done, how much of it, and of how much."""

    def __init__(self) -> None:
        self.console = Console(file=sys.stderr, highlight=False)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("left:"),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
        )
        self._task = self._bar.add_task("", visible=False)
        self._text = ""

    def __enter__(self) -> Self:
        # Where nobody watches, in a log file, a bar is noise.
        if self.console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self._bar.stop()

    def __call__(self, text: str, done: int, total: int) -> None:
        """Moves the bar, or starts one for another part."""
        if text != self._text:
            self._text = text
            self._bar.reset(self._task, total=total, description=text, visible=True)
        self._bar.update(self._task, completed=done, total=total)

    def say(self, text: str) -> None:
        """Prints a line above the bar."""
        self.console.print(text, markup=False, soft_wrap=True)
