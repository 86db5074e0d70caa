"""A progress bar for the runs of a table."""

from __future__ import annotations

from collections.abc import Callable

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from smoe.training.terminal_bar import TerminalBar
from smoe_paper.experiments.reproduction import PlannedRun
from smoe_paper.experiments.result_tables.stored_runs import RunStore


class RunProgress(TerminalBar):
    """A bar over all runs with the time left, and a line for each that ended.

    Args:
        num_runs: Number of runs in all.
        num_stored: Number of runs that were stored before.
        store: Store of the results.
        on_end: Called when a run has been stored.
    """

    def __init__(self, num_runs: int, num_stored: int, store: RunStore, on_end: Callable[[], None]) -> None:
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left:"),
            # Runs take minutes, and their speed is known only over many of them.
            TimeRemainingColumn(),
            speed_estimate_period=6 * 3600,
        )
        self._store, self._on_end = store, on_end
        self._task = self._bar.add_task("runs", total=num_runs, completed=num_stored)

    def end(self, run: PlannedRun) -> None:
        """Advances the bar and prints what the run reached."""
        self._bar.advance(self._task)
        result = self._store.runs()[run.key]
        value = result["test"].get(run.recipe.training.monitor)
        reached = "diverged" if value is None else f"{value:.4f} after {result['epochs']} epochs ({result['stopped']})"
        self.notify(f"{run.label}: {reached}")
        self._on_end()
