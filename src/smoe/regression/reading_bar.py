"""Progress of reading fields on the terminal."""

from __future__ import annotations

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from smoe.training.terminal_bar import TerminalBar


class ReadingBar(TerminalBar):
    """Shows a bar of the times that were read.

    Args:
        is_quiet: Show nothing.
    """

    def __init__(self, *, is_quiet: bool = False) -> None:
        super().__init__(
            TextColumn("reading times"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), is_quiet=is_quiet
        )
        self._task = self._bar.add_task("", total=None)

    def advance(self, done: int, total: int) -> None:
        """Moves the bar."""
        self._bar.update(self._task, completed=done, total=total)
