"""A progress bar for making and scoring forecasts."""

from __future__ import annotations

from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn

from smoe.training.terminal_bar import TerminalBar


class ScoreProgress(TerminalBar):
    """A bar for each part of the work; called with the part, how much of it is done, and of how much."""

    def __init__(self) -> None:
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("left:"),
            TimeRemainingColumn(),
        )
        self._task = self._bar.add_task("", visible=False)
        self._text = ""

    def __call__(self, text: str, done: int, total: int) -> None:
        """Advances the bar, or starts one for another part."""
        if text != self._text:
            self._text = text
            self._bar.reset(self._task, total=total, description=text, visible=True)
        self._bar.update(self._task, completed=done, total=total)
