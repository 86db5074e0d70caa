"""Progress on the terminal, and records for TensorBoard."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from smoe.training.plan import Tracker
from smoe.training.run_directory import Record


class ProgressBar:
    """A bar on the error stream with the time left, and lines above it; in a log file, the lines only.

    A context manager. The speed is measured over some seconds; more for parts that take long.
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
        self.console.print(text, markup=False, soft_wrap=True)

    def begin(self, total: int, done: int, text: str = "") -> None:
        """Resets the bar, with a part already done."""
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
    def begin_epoch(self, epoch: int, num_batches: int, first_batch: int) -> None:
        """Called when an epoch begins, or continues at `first_batch`."""

    def step(self, loss: float | None) -> None:
        """Called after each batch; with the mean loss of the epoch now and then."""

    def end_epoch(self, record: Record, *, is_best: bool) -> None:
        """Called after an epoch and its evaluation."""

    def notify(self, text: str) -> None:
        """Called with a message of one line."""


class BarReporter(ProgressBar, Reporter):
    """Shows a bar for the current epoch and prints a line, with the monitored metric, for each one that ended."""

    def __init__(self, monitor: str, *, is_quiet: bool = False) -> None:
        super().__init__(is_quiet=is_quiet)
        self._monitor, self._epoch = monitor, 0

    def begin_epoch(self, epoch: int, num_batches: int, first_batch: int) -> None:
        self._epoch = epoch
        self.begin(num_batches, first_batch, f"epoch {epoch}")

    def step(self, loss: float | None) -> None:
        self.advance(None if loss is None else f"epoch {self._epoch}, loss {loss:.3g}")

    def end_epoch(self, record: Record, *, is_best: bool) -> None:
        value = record[f"validation/{self._monitor}"]
        self.notify(
            f"epoch {record['epoch']:3d}  {self._monitor} {value:8.4f}{' *' if is_best else '  '}  "
            f"train loss {record['train/loss']:.3e}  lr {record['learning_rate']:.1e}  {record['seconds']:.1f} s"
        )


class TrackedReporter(Reporter):
    """Passes progress on to another reporter, and writes the record of each epoch for TensorBoard.

    Weights & Biases takes the same records over by `wandb sync`, or live after `wandb.init(sync_tensorboard=True)`.
    """

    def __init__(self, reporter: Reporter, tracker: Tracker, folder: Path) -> None:
        if importlib.util.find_spec(tracker) is None:
            raise ValueError(f"log_with={tracker!r} needs the package {tracker}: pip install {tracker}")
        self._reporter, self._folder, self._writer = reporter, folder, None
        self.begin_epoch, self.step, self.notify = reporter.begin_epoch, reporter.step, reporter.notify

    def end_epoch(self, record: Record, *, is_best: bool) -> None:
        self._reporter.end_epoch(record, is_best=is_best)
        if self._writer is None:
            # Not before an epoch has ended, so that a run that is refused leaves nothing.
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(self._folder)
        for key, value in record.items():
            if isinstance(value, (int, float)):
                self._writer.add_scalar(key, value, record["epoch"])
        self._writer.flush()
