"""Progress on the terminal, what a training reports, and its record with TensorBoard, MLflow or Weights & Biases."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from smoe._plain import flatten
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
        """Start the bar anew, of which some is done already."""
        self._bar.reset(self._task, total=total, completed=done, description=text, visible=True)

    def advance(self, text: str | None = None) -> None:
        """Count one more, and show what is under way."""
        self._bar.update(self._task, advance=1, description=text)

    def show(self, done: int, total: int, text: str) -> None:
        """Show how much is done; less than before is another part of the work, with a speed of its own."""
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
    """Passes progress on to another reporter, and the record of each epoch to a tracker.

    Use it as a context manager: some trackers write at the end. Weights & Biases runs offline unless the environment
    sets WANDB_MODE; MLflow writes into the folder unless it sets MLFLOW_TRACKING_URI.
    """

    def __init__(self, reporter: Reporter, tracker: Tracker, folder: Path, config: Mapping[str, Any]) -> None:
        if importlib.util.find_spec(tracker) is None:
            raise ValueError(f"log_with={tracker!r} needs the package {tracker}: pip install {tracker}")
        self._reporter, self._folder, self._config = reporter, folder, config
        self._tracker: Any = None
        self._name: Tracker = tracker
        self.step, self.notify = reporter.step, reporter.notify

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._tracker is not None:
            self._tracker.finish()
            self._tracker = None

    def begin_epoch(self, epoch: int, num_batches: int, first_batch: int) -> None:
        """Start the tracker in the first epoch, so that a run that is refused leaves nothing."""
        if self._tracker is None:
            self._tracker = make_tracker(self._name, self._folder)
            config = {
                name: value for name, value in flatten(self._config).items() if isinstance(value, (int, float, str))
            }
            self._tracker.store_init_configuration(config)
        self._reporter.begin_epoch(epoch, num_batches, first_batch)

    def end_epoch(self, record: Record, *, is_best: bool) -> None:
        self._reporter.end_epoch(record, is_best=is_best)
        numbers = {key: float(value) for key, value in record.items() if isinstance(value, (int, float))}
        if self._name == "mlflow":
            # A metric is a file there, and cannot be a folder of others too, as `a` beside `a/b` would be.
            numbers = {key.replace("/", "."): value for key, value in numbers.items()}
        self._tracker.log(numbers, step=int(record["epoch"]))


def make_tracker(name: Tracker, folder: Path) -> Any:
    from accelerate import tracking
    from accelerate.state import PartialState

    PartialState()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if name == "tensorboard":
            tracker = tracking.TensorBoardTracker(folder.name, logging_dir=folder.parent)
        elif name == "mlflow":
            if "MLFLOW_TRACKING_URI" not in os.environ:
                os.environ["MLFLOW_TRACKING_URI"] = (folder / "mlruns").resolve().as_uri()
                # Later versions prefer a database, which needs further packages, and refuse files unless asked.
                os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            tracker = tracking.MLflowTracker("smoe", run_name=folder.name)
        else:
            os.environ.setdefault("WANDB_MODE", "offline")
            tracker = tracking.WandBTracker("smoe", dir=str(folder))
        if hasattr(tracker, "start"):
            tracker.start()
    except ModuleNotFoundError as error:
        raise ValueError(f"log_with={name!r} needs the package {error.name}: pip install {error.name}") from None
    return tracker
