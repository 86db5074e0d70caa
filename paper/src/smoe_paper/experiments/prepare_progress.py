"""A progress bar for the preparation of a store."""

from __future__ import annotations

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from smoe.training.terminal_bar import TerminalBar


class PrepareProgress(TerminalBar):
    """A bar over the channels of all years, with the time left, and lines above it."""

    def __init__(self) -> None:
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left:"),
            TimeRemainingColumn(),
            # A channel of a year takes seconds, and their speed is known only over many of them.
            speed_estimate_period=600,
        )
        self._task = self._bar.add_task("", start=False, visible=False)

    def begin(self, total: int, done: int) -> None:
        """Shows the bar."""
        self._bar.reset(self._task, total=total, completed=done, visible=True)

    def advance(self, text: str) -> None:
        """Advances the bar and shows the part under way; in a log file, a line for each year."""
        self._bar.update(self._task, advance=1, description=text)
