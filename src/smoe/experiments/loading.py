"""Opens what was trained, from Python: runs of every experiment, and models for a user's own data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from smoe.experiments.experiment import Notify
from smoe.experiments.open_run import OpenRun
from smoe.experiments.recipe import Recipe
from smoe.experiments.registry import experiment_of
from smoe.experiments.runs import CheckpointName, open_run
from smoe.training.run_directory import RunError

if TYPE_CHECKING:
    from smoe.regression import GridRegressor


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


def load(
    path: Path | str,
    checkpoint: CheckpointName = "best",
    *,
    notify: Notify = print,
    net: nn.Module | None = None,
    **data: Any,
) -> TrainedRun | GridRegressor:
    """Opens a trained run, or a model that `GridRegressor.save` or `smoe fit` wrote.

    Args:
        path: Directory of the run or of the model, wherever it was moved.
        checkpoint: Weights of a run: `best`, by the validation split, or `last`.
        notify: Receives messages about data that are being made.
        net: The module itself, if a `GridRegressor` was fitted with one of your own.
        **data: Fields of a run's recipe.data to replace, such as `store="stores/era5"`: where data were moved, or lie
            outside the run and the working directory.

    Raises:
        RunError: If the directory holds neither, or its recipe names a place that is not allowed.
        ValueError: If `net` is given for a run, or `data` for a model.

    Example:
        >>> run = smoe.load("runs/weather-smoe-0", store="stores/era5")  # doctest: +SKIP
        >>> prediction, truth = next(run.predict("test"))  # doctest: +SKIP
    """
    path = Path(path)
    if (path / "recipe.json").is_file():
        if net is not None:
            raise ValueError(f"{path} is a run, whose recipe describes its network: leave out net=")
        places = {name: Path(value) if isinstance(value, str) else value for name, value in data.items()}
        return TrainedRun(path, checkpoint, places, notify)
    if (path / "config.json").is_file():
        from smoe.regression import GridRegressor

        if data:
            raise ValueError(f"{path} is a model, which names no data: leave out {', '.join(data)}")
        return GridRegressor.load(path, net=net)
    raise RunError(f"{path} holds neither a run (recipe.json) nor a model (config.json)")
