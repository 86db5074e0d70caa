"""Records a training with TensorBoard, MLflow or Weights & Biases, through accelerate."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from smoe.training.plan import Tracker
from smoe.training.progress import Reporter
from smoe.training.run_directory import Record


class TrackedReporter(Reporter):
    """Logs progress to another reporter, and the record of each epoch to a tracker.

    Use it as a context manager, or call `finish`: some trackers write at the end.

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
        check_installed(tracker)
        self._reporter, self._folder = reporter, folder
        self._name: Tracker = tracker
        self._config = {
            key: value for key, value in _flat(config).items() if isinstance(value, (int, float, str, bool))
        }
        self._tracker: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def begin_epoch(self, epoch: int, num_batches: int, first_batch: int) -> None:
        """Logs that an epoch begins; the first one starts the tracker, so that a run that is refused leaves nothing."""
        if self._tracker is None:
            self._tracker = make_tracker(self._name, self._folder)
            self._tracker.store_init_configuration(self._config)
        self._reporter.begin_epoch(epoch, num_batches, first_batch)

    def step(self, loss: float | None) -> None:
        """Logs that a batch is done."""
        self._reporter.step(loss)

    def end_epoch(self, record: Record, *, is_best: bool) -> None:
        """Logs an epoch and records its numbers."""
        self._reporter.end_epoch(record, is_best=is_best)
        numbers = {key: float(value) for key, value in record.items() if isinstance(value, (int, float))}
        if self._name == "mlflow":
            # A metric is a file there, and cannot be a folder of others too, as `a` beside `a/b` would be.
            numbers = {key.replace("/", "."): value for key, value in numbers.items()}
        self._tracker.log(numbers, step=int(record["epoch"]))

    def notify(self, text: str) -> None:
        """Logs a line."""
        self._reporter.notify(text)

    def finish(self) -> None:
        """Closes the tracker, if it was started."""
        if self._tracker is not None:
            self._tracker.finish()
            self._tracker = None


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested options with names such as `training.batch_size`."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def check_installed(name: Tracker) -> None:
    """Checks that the package of a tracker is there, without importing it.

    Raises:
        ValueError: If it is not.
    """
    if importlib.util.find_spec(name) is None:
        raise ValueError(f"log_with={name!r} needs the package {name}: pip install {name}")


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
