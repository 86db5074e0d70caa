"""Progress on the terminal: one bar for whatever takes long, and what a training reports."""

from __future__ import annotations

import sys
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from smoe.training.run_directory import Record


class ProgressBar:
    """A bar on the error stream with the time left, and lines above it; in a log file, the lines only.

    Use it as a context manager.

    Args:
        is_quiet: Show nothing.
        speed_seconds: Seconds over which the speed is measured; more for parts that take long.
    """

    def __init__(self, *, is_quiet: bool = False, speed_seconds: float = 30.0) -> None:
        self.console = Console(file=sys.stderr, highlight=False, quiet=is_quiet)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Progress(
            *columns, TextColumn("left:"), TimeRemainingColumn(), console=self.console, transient=True,
            speed_estimate_period=speed_seconds,
        )  # fmt: skip
        self._task = self._bar.add_task("", total=None, visible=False)

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self._bar.stop()

    def notify(self, text: str) -> None:
        """Prints a line above the bar."""
        self.console.print(text, markup=False, soft_wrap=True)

    def begin(self, total: int, done: int, text: str = "") -> None:
        """Starts the bar anew, of which some is done already."""
        self._bar.reset(self._task, total=total, completed=done, description=text, visible=True)

    def advance(self, text: str | None = None) -> None:
        """Counts one more, and shows what is under way."""
        self._bar.update(self._task, advance=1, description=text)

    def show(self, done: int, total: int, text: str) -> None:
        """Shows how much is done; less than before is another part of the work, with a speed of its own."""
        if done < self._bar.tasks[0].completed:
            self._bar.reset(self._task)
        self._bar.update(self._task, completed=done, total=total, description=text, visible=True)


class Reporter:
    """Receives the progress of a training; this one does nothing with it."""

    def begin_epoch(self, epoch: int, num_batches: int, first_batch: int) -> None:
        """Called when an epoch begins, or continues at `first_batch`."""

    def step(self, loss: float | None) -> None:
        """Called after each batch; with the mean loss of the epoch now and then."""

    def end_epoch(self, record: Record, *, is_best: bool) -> None:
        """Called after an epoch and its evaluation."""

    def notify(self, text: str) -> None:
        """Called with a message of one line."""


class BarReporter(ProgressBar, Reporter):
    """Shows a bar for the current epoch and prints a line for each one that ended.

    Args:
        monitor: Metric of the lines.
        is_quiet: Show nothing.
    """

    def __init__(self, monitor: str, *, is_quiet: bool = False) -> None:
        super().__init__(is_quiet=is_quiet)
        self._monitor, self._epoch = monitor, 0

    def begin_epoch(self, epoch: int, num_batches: int, first_batch: int) -> None:
        """Starts the bar anew."""
        self._epoch = epoch
        self.begin(num_batches, first_batch, f"epoch {epoch}")

    def step(self, loss: float | None) -> None:
        """Counts a batch."""
        self.advance(None if loss is None else f"epoch {self._epoch}, loss {loss:.3g}")

    def end_epoch(self, record: Record, *, is_best: bool) -> None:
        """Prints the epoch's line."""
        value = record[f"validation/{self._monitor}"]
        self.notify(
            f"epoch {record['epoch']:3d}  {self._monitor} {value:8.4f}{' *' if is_best else '  '}  "
            f"train loss {record['train/loss']:.3e}  lr {record['learning_rate']:.1e}  {record['seconds']:.1f} s"
        )
