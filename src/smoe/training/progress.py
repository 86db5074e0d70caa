"""What a person sees while a run trains."""

from __future__ import annotations

from typing import Protocol

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from smoe.training.run_directory import Record
from smoe.training.terminal_bar import TerminalBar


class Reporter(Protocol):
    """Hears of the steps of a run."""

    def begin_epoch(self, epoch: int, num_batches: int, first_batch: int) -> None:
        """An epoch begins, or goes on at `first_batch`."""
        ...

    def step(self, loss: float | None) -> None:
        """A batch is done; the loss is given now and then."""
        ...

    def end_epoch(self, record: Record, *, is_best: bool) -> None:
        """An epoch is done and evaluated."""
        ...

    def say(self, text: str) -> None:
        """Something worth a line."""
        ...


class SilentReporter:
    """Says nothing."""

    def begin_epoch(self, epoch: int, num_batches: int, first_batch: int) -> None:
        """Nothing."""

    def step(self, loss: float | None) -> None:
        """Nothing."""

    def end_epoch(self, record: Record, *, is_best: bool) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Nothing."""


class BarReporter(TerminalBar):
    """A progress bar for the epoch under way and a line for each that ended.

    Args:
        monitor: the metric of the lines.
        is_quiet: show nothing.
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
        """Moves the bar."""
        if loss is None:
            self._bar.advance(self._task)
        else:
            self._bar.update(self._task, advance=1, loss=f"{loss:.3g}")

    def end_epoch(self, record: Record, *, is_best: bool) -> None:
        """Prints the epoch's line."""
        value = record[f"validation/{self.monitor}"]
        self.say(
            f"epoch {record['epoch']:3d}  {self.monitor} {value:8.4f}{' *' if is_best else '  '}  "
            f"train loss {record['train/loss']:.3e}  lr {record['learning_rate']:.1e}  {record['seconds']:.1f} s"
        )
