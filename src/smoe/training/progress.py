"""Progress of a run on the terminal."""

from __future__ import annotations

from typing import Protocol

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from smoe.training.run_directory import Record
from smoe.training.terminal_bar import TerminalBar


class Reporter(Protocol):
    """Logs the progress of a run."""

    def begin_epoch(self, epoch: int, num_batches: int, first_batch: int) -> None:
        """Called when an epoch begins, or continues at `first_batch`."""
        ...

    def step(self, loss: float | None) -> None:
        """Called after each batch; with the mean loss of the epoch now and then."""
        ...

    def end_epoch(self, record: Record, *, is_best: bool) -> None:
        """Called after an epoch and its evaluation."""
        ...

    def notify(self, text: str) -> None:
        """Called with a message of one line."""
        ...


class SilentReporter:
    """Logs nothing."""

    def begin_epoch(self, epoch: int, num_batches: int, first_batch: int) -> None:
        """Does nothing."""

    def step(self, loss: float | None) -> None:
        """Does nothing."""

    def end_epoch(self, record: Record, *, is_best: bool) -> None:
        """Does nothing."""

    def notify(self, text: str) -> None:
        """Does nothing."""


class BarReporter(TerminalBar):
    """Shows a progress bar for the current epoch and prints a line for each one that ended.

    Args:
        monitor: Metric of the lines.
        is_quiet: Show nothing.
    """

    def __init__(self, monitor: str, *, is_quiet: bool = False) -> None:
        self.monitor = monitor
        super().__init__(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("loss {task.fields[loss]}"),
            is_quiet=is_quiet,
        )
        self._task = self._bar.add_task("", epoch=0, loss="", start=False, visible=False)

    def begin_epoch(self, epoch: int, num_batches: int, first_batch: int) -> None:
        """Resets the bar."""
        self._bar.reset(self._task, total=num_batches, completed=first_batch, epoch=epoch, loss="", visible=True)

    def step(self, loss: float | None) -> None:
        """Advances the bar."""
        if loss is None:
            self._bar.advance(self._task)
        else:
            self._bar.update(self._task, advance=1, loss=f"{loss:.3g}")

    def end_epoch(self, record: Record, *, is_best: bool) -> None:
        """Prints the epoch's line."""
        value = record[f"validation/{self.monitor}"]
        self.notify(
            f"epoch {record['epoch']:3d}  {self.monitor} {value:8.4f}{' *' if is_best else '  '}  "
            f"train loss {record['train/loss']:.3e}  lr {record['learning_rate']:.1e}  {record['seconds']:.1f} s"
        )
