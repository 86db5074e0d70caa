"""Opens runs of every experiment, from Python."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from smoe_paper.experiments.experiment import Notify
from smoe_paper.experiments.open_run import OpenRun
from smoe_paper.experiments.recipe import Recipe
from smoe_paper.experiments.registry import experiment_of
from smoe_paper.experiments.runs import CheckpointName, open_run

if TYPE_CHECKING:
    pass


class TrainedRun:
    """A trained run of an experiment, with its network in evaluation mode.

    Args:
        path: Run directory.
        checkpoint: `best`, by the validation split, or `last`.
        data: Fields of the recipe's data to replace, such as `store` where the data were moved.
        notify: Receives messages about data that are being made.
    """

    def __init__(self, path: Path, checkpoint: CheckpointName, data: dict[str, Any], notify: Notify) -> None:
        self._options = (path, checkpoint)
        self._data, self._notify = data, notify
        self._opened: dict[str, OpenRun] = {}
        run = open_run(path, checkpoint, (), notify, data)
        self.name, self.recipe, self.model = run.name, run.recipe, run.model

    name: str
    """Name of the recipe that the run began as."""

    recipe: Recipe
    """The resolved recipe."""

    model: torch.nn.Module
    """The trained network; it takes and returns what it was trained on, which may be normalised."""

    def predict(self, split: str = "test") -> Iterator[tuple[Tensor, Tensor]]:
        """Yields predictions and truths of a split in physical units, batch by batch.

        Args:
            split: `train`, `validation` or `test`.
        """
        return experiment_of(self.recipe).predict(self._open(split), split)

    def evaluate(self, split: str = "test") -> dict[str, float]:
        """Computes the metrics of the recipe on a split."""
        return self._open(split).evaluate(split)

    def _open(self, split: str) -> OpenRun:
        if split not in self._opened:
            path, checkpoint = self._options
            self._opened[split] = open_run(path, checkpoint, (split,), self._notify, self._data)
        return self._opened[split]

    def __repr__(self) -> str:
        return f"TrainedRun({self.name!r}, seed={self.recipe.seed}, {type(self.model).__name__})"


def load(path: Path | str, checkpoint: CheckpointName = "best", *, notify: Notify = print, **data: Any) -> TrainedRun:
    """Opens a trained run.

    Args:
        path: Directory of the run, wherever it was moved.
        checkpoint: `best`, by the validation split, or `last`.
        notify: Receives messages about data that are being made.
        **data: Fields of the recipe's data to replace, such as `store="stores/era5"`: where data were moved, or lie
            outside the run and the working directory.

    Raises:
        RunError: If the directory holds no run, or its recipe names a place that is not allowed.

    Example:
        >>> run = load("runs/weather-smoe-0", store="stores/era5")  # doctest: +SKIP
        >>> prediction, truth = next(run.predict("test"))  # doctest: +SKIP
    """
    places = {name: Path(value) if isinstance(value, str) else value for name, value in data.items()}
    return TrainedRun(Path(path), checkpoint, places, notify)
