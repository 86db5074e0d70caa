"""Records a training with TensorBoard, MLflow or Weights & Biases, through accelerate."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from smoe.training.progress import Reporter
from smoe.training.run_directory import Record

Tracker = Literal["tensorboard", "mlflow", "wandb"]


class TrackedReporter:
    """Logs progress to another reporter, and the record of each epoch to a tracker.

    Weights & Biases runs offline unless the environment sets WANDB_MODE, MLflow writes into the folder unless it sets
    MLFLOW_TRACKING_URI.

    Args:
        reporter: Reporter that logs progress too.
        tracker: Package that keeps the records.
        folder: Folder of its files.
        config: Options of the run, which the tracker shows beside it.

    Raises:
        ValueError: If the package is not installed.
    """

    def __init__(self, reporter: Reporter, tracker: Tracker, folder: Path, config: Mapping[str, Any]) -> None:
        self._reporter = reporter
        self._tracker = make_tracker(tracker, folder)
        self._tracker.store_init_configuration(
            {key: value for key, value in config.items() if isinstance(value, (int, float, str, bool))}
        )

    def begin_epoch(self, epoch: int, num_batches: int, first_batch: int) -> None:
        """Logs that an epoch begins."""
        self._reporter.begin_epoch(epoch, num_batches, first_batch)

    def step(self, loss: float | None) -> None:
        """Logs that a batch is done."""
        self._reporter.step(loss)

    def end_epoch(self, record: Record, *, is_best: bool) -> None:
        """Logs an epoch and records its numbers."""
        self._reporter.end_epoch(record, is_best=is_best)
        numbers = {key: float(value) for key, value in record.items() if isinstance(value, (int, float))}
        self._tracker.log(numbers, step=int(record["epoch"]))

    def notify(self, text: str) -> None:
        """Logs a line."""
        self._reporter.notify(text)

    def finish(self) -> None:
        """Closes the tracker."""
        self._tracker.finish()


def make_tracker(name: Tracker, folder: Path) -> Any:
    """A tracker of accelerate.

    Raises:
        ValueError: If its package is not installed.
    """
    from accelerate import tracking
    from accelerate.state import PartialState

    PartialState()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if name == "tensorboard":
            tracker = tracking.TensorBoardTracker(folder.name, logging_dir=folder.parent)
        elif name == "mlflow":
            os.environ.setdefault("MLFLOW_TRACKING_URI", (folder / "mlruns").resolve().as_uri())
            tracker = tracking.MLflowTracker("smoe", run_name=folder.name)
        else:
            os.environ.setdefault("WANDB_MODE", "offline")
            tracker = tracking.WandBTracker("smoe", dir=str(folder))
        if hasattr(tracker, "start"):
            tracker.start()
    except ModuleNotFoundError as error:
        raise ValueError(f"log_with={name!r} needs the package {error.name}: pip install {error.name}") from None
    return tracker
