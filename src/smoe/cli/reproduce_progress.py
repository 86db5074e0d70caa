"""A progress bar for the runs of a table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as TimeLeftColumn

from smoe.experiments.reproduction.run import PlannedRun
from smoe.training.run_directory import RunDirectory
from smoe.training.terminal_bar import TerminalBar


class RunProgress(TerminalBar):
    """A bar over all runs with the time left, and a line for each that is under way.

    Args:
        num_runs: Number of runs in all.
        num_stored: Number of runs that were stored before.
        on_end: Called when a run has been stored.
    """

    def __init__(self, num_runs: int, num_stored: int, on_end: Callable[[], None]) -> None:
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left:"),
            # Runs take minutes, and their speed is known only over many of them.
            TimeLeftColumn(),
            speed_estimate_period=6 * 3600,
        )
        self.on_end = on_end
        self._all = self._bar.add_task("runs", total=num_runs, completed=num_stored)
        self._lines: dict[str, tuple[TaskID, RunDirectory]] = {}

    def begin(self, run: PlannedRun, folder: Path) -> None:
        """Adds the run's line."""
        self._lines[run.key.name] = (
            self._bar.add_task(run.label, total=run.recipe.training.max_epochs),
            RunDirectory(folder),
        )

    def end(self, run: PlannedRun) -> None:
        """Advances the bar and prints what the run reached."""
        task, directory = self._lines.pop(run.key.name)
        self._bar.remove_task(task)
        self._bar.advance(self._all)
        last = directory.read_history()[-1]
        value = last.get(f"test/{run.recipe.training.monitor}")
        reached = "diverged" if value is None else f"{value:.4f} after {last['epoch']} epochs ({last['stopped']})"
        self.notify(f"{run.label}: {reached}")
        self.on_end()

    def look(self) -> None:
        """Shows how far the runs under way have come."""
        if not self.console.is_terminal:
            return
        for task, directory in self._lines.values():
            self._bar.update(task, completed=len(directory.read_history()))
