"""Trains recipes, and opens runs that were trained.

A place that a recipe.json names is used if it lies inside the run or the working directory.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from smoe.training import RecipeError, is_path, shorten, type_hints
from smoe.training.loop import Loop
from smoe.training.plan import check_monitor, resumable_fields
from smoe.training.progress import Reporter
from smoe.training.run_directory import (
    CheckpointError,
    Record,
    RunDirectory,
    RunError,
    keep_freed_memory,
    load_checkpoint,
)
from smoe.training.task import metric_names
from smoe_paper.experiments.experiment import Notify, experiment_of, recipe_from_plain
from smoe_paper.experiments.recipe import Recipe
from smoe_paper.experiments.stored_runs import RunKey, RunStore
from smoe_paper.experiments.tables import TableSet
from smoe_paper.experiments.task import OpenRun

CACHE = "data.cache_dir"
"""Folder that keeps simulated data: without it they are simulated again, and nothing is refused."""


def places_of(recipe: Recipe) -> dict[str, Path | None]:
    """Every field of a recipe that can hold a path, with its value, by its name with dots."""
    return _path_fields(recipe)


def data_places(recipe: Recipe) -> list[str]:
    """The fields of the recipe's data that can hold a path, which a command takes as `--data.FIELD PATH`."""
    return [name.removeprefix("data.") for name in places_of(recipe) if name.startswith("data.")]


def outside_places(recipe: Recipe, directory: RunDirectory) -> dict[str, Path]:
    """The paths of a recipe that lie outside its run and the working directory, by their fields with dots."""
    named = {name: path for name, path in places_of(recipe).items() if path is not None}
    return {name: path for name, path in named.items() if not directory.may_name(path)}


def replace_places(recipe: Recipe, places: Mapping[str, Path | None]) -> Recipe:
    """The recipe with other paths, by their fields with dots, such as `data.store` and `init_from`."""
    for name, path in places.items():
        recipe = _replaced(recipe, name.split("."), path)
    return recipe


def check_places(directory: RunDirectory, outside: Mapping[str, Path], unopened: Collection[str] = ()) -> None:
    """Refuses a run that would have files opened or written outside."""
    for name, path in outside.items():
        if name not in unopened:
            flag, argument = name.replace("_", "-"), name.rpartition(".")[2]
            raise RunError(
                f"{directory.recipe_file}: {name} is {str(path)!r}, outside the run and the working directory: give "
                f"the place as --{flag} PATH (in Python {argument}=PATH)"
            )
    for parent, folders, files in os.walk(directory.path):
        for entry in (Path(parent) / name for name in (*folders, *files)):
            if entry.is_symlink() and not directory.may_name(entry):
                raise RunError(
                    f"{directory.path} holds a link that leads out of it and of the working directory, "
                    f"{str(entry.relative_to(directory.path))!r}: remove it, or work in a folder that holds both"
                )


def _path_fields(value: Any, prefix: str = "") -> dict[str, Path | None]:
    found: dict[str, Path | None] = {}
    for field in dataclasses.fields(value):
        part = getattr(value, field.name)
        if dataclasses.is_dataclass(part):
            found |= _path_fields(part, f"{prefix}{field.name}.")
        elif is_path(type_hints(type(value))[field.name]):
            found[f"{prefix}{field.name}"] = part
    return found


def _replaced(value: Any, names: list[str], path: Path | None) -> Any:
    first, *rest = names
    return dataclasses.replace(value, **{first: _replaced(getattr(value, first), rest, path) if rest else path})


def check_initial_weights(run: Path) -> None:
    """Checks that a run has weights to start from, before any data are made."""
    file = RunDirectory(run).best_checkpoint
    if not file.is_file():
        raise CheckpointError(
            f"init_from is {run}, which holds no best weights ({file} is missing): name the folder of a run of which "
            "an epoch has ended"
        )


def load_initial_weights(model: nn.Module, run: Path) -> None:
    """Loads the best weights of a run."""
    check_initial_weights(run)
    theirs, ours = load_checkpoint(RunDirectory(run).best_checkpoint)["model"], model.state_dict()
    for name in [*ours, *theirs]:
        in_run = tuple(theirs[name].shape) if name in theirs else "not there"
        here = tuple(ours[name].shape) if name in ours else "not there"
        if in_run != here:
            raise CheckpointError(
                f"the weights of {run} do not fit: {name} is {in_run} in that run and {here} here; give both the same "
                "model, inputs, targets and grid"
            )
    model.load_state_dict(theirs)


CheckpointName = Literal["best", "last"]


def train(
    name: str,
    recipe: Recipe,
    output_dir: Path,
    *,
    resume: bool = False,
    reporter: Reporter | None = None,
    notify: Notify = print,
) -> Record:
    """Trains a recipe and returns its last record.

    What can be refused without data is refused before they are made: a directory that cannot be written or is in use, a
    recipe that differs from the run's, a metric that does not exist.
    """
    set_num_threads(recipe)
    keep_freed_memory()
    directory = RunDirectory(output_dir)
    directory.check_writable()
    experiment, plain = experiment_of(recipe), _stored(name, recipe)
    with directory.lock():
        check_places(directory, {})
        places = {"init_from", *(f"data.{place}" for place in data_places(recipe))}
        may_differ = resumable_fields(recipe.training) | places
        directory.check(plain, resume=resume, may_differ=may_differ)
        check_monitor(recipe.training, metric_names(experiment.build(recipe, (), _silence).metrics))
        has_begun = resume and directory.last_checkpoint.exists()
        if recipe.init_from is not None and not has_begun:
            check_initial_weights(recipe.init_from)
        task = experiment.build(recipe, notify=notify)
        if recipe.init_from is not None and not has_begun:
            load_initial_weights(task.model, recipe.init_from)
            notify(f"starting from the best weights of {recipe.init_from}")
        loop = Loop(task, recipe.training, directory, reporter)
        loop.begin(plain)
        return loop.fit(resume=resume)


def open_run(
    path: Path | str,
    checkpoint: CheckpointName = "best",
    splits: tuple[str, ...] = (),
    notify: Notify = print,
    data: Mapping[str, Any] | None = None,
) -> OpenRun:
    """Builds a run's model again and loads its weights.

    A place of data that its recipe.json names is used if it lies inside the run or the working directory, and must be
    given in `data` otherwise; a `cache_dir` elsewhere is ignored.
    """
    directory = RunDirectory(path)
    name, recipe = read_recipe(directory)
    experiment, outside = experiment_of(recipe), outside_places(recipe, directory)
    # The weights to start from are not opened again.
    unopened = {CACHE, "init_from", *(f"data.{given}" for given in data or {})}
    if not splits and experiment.builds_without_data:
        unopened |= {f"data.{place}" for place in data_places(recipe)}
    check_places(directory, outside, unopened)
    if CACHE in outside:
        recipe = replace_places(recipe, {CACHE: None})
    if data:
        recipe = replace(recipe, data=replace(recipe.data, **data))
    set_num_threads(recipe)
    file = directory.best_checkpoint if checkpoint == "best" else directory.last_checkpoint
    if checkpoint == "best" and not file.exists():
        raise CheckpointError(f"{path} has no best checkpoint yet: no epoch has ended; try --checkpoint last")
    weights = load_checkpoint(file)["model"]
    task = experiment.build(recipe, splits, notify)
    try:
        task.model.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointError(f"the weights of {file} do not fit the recipe beside them: {error}") from error
    task.model.eval()
    return OpenRun(name, recipe, task, directory)


def kept_run(
    table_set: TableSet, recipe: Recipe, store: RunStore, runs_dir: Path, splits: tuple[str, ...] = (), **data: Any
) -> OpenRun | None:
    """The stored run of a recipe with seed 0 at the largest scale whose weights are kept in `runs_dir`."""
    for scale in table_set.scales:
        key = RunKey.of(replace(scale.apply(recipe), seed=0))
        folder = runs_dir / key.name
        if store.has(key) and RunDirectory(folder).best_checkpoint.exists():
            return open_run(folder, splits=splits, notify=lambda _: None, data=data)
    return None


def read_recipe(directory: RunDirectory) -> tuple[str, Recipe]:
    """The name of the recipe that a run began as, and the recipe itself."""
    return _parse_stored(directory.read_recipe(), str(directory.recipe_file))


def _stored(name: str, recipe: Recipe) -> dict[str, Any]:
    return {"name": name, "recipe": recipe.plain()}


def _parse_stored(stored: dict[str, Any], place: str) -> tuple[str, Recipe]:
    """The name and the recipe; `place` begins the message of an error."""
    name = stored.get("name")
    if not isinstance(name, str):
        raise RunError(f"{place}: name must be a text, got {name!r}")
    if not isinstance(stored.get("recipe"), dict):
        raise RunError(f"{place}: recipe must be a dictionary, got {shorten(stored.get('recipe'))}")
    try:
        return name, recipe_from_plain(stored["recipe"])
    except RecipeError as error:
        raise RunError(f"{place}: {error}") from error


def _silence(text: str) -> None:
    del text


def set_num_threads(recipe: Recipe) -> None:
    if recipe.training.num_threads is not None:
        torch.set_num_threads(recipe.training.num_threads)


class TrainedRun:
    """A trained run of an experiment, with its network in evaluation mode.

    Args:
        checkpoint: `best`, by the validation split, or `last`.
        data: Fields of the recipe's data to replace, such as `store` where the data were moved.
    """

    def __init__(self, path: Path, checkpoint: CheckpointName, data: dict[str, Any], notify: Notify) -> None:
        self._options = (path, checkpoint)
        self._data, self._notify = data, notify
        self._opened: dict[str, OpenRun] = {}
        run = open_run(path, checkpoint, (), notify, data)
        self.name, self.recipe, self.model = run.name, run.recipe, run.model

    def predict(self, split: str = "test") -> Iterator[tuple[Tensor, Tensor]]:
        """Yields predictions and truths of a split in physical units, batch by batch."""
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

    Example:
        >>> run = load("runs/weather-smoe-0", store="stores/era5")  # doctest: +SKIP
        >>> prediction, truth = next(run.predict("test"))  # doctest: +SKIP
    """
    places = {name: Path(value) if isinstance(value, str) else value for name, value in data.items()}
    return TrainedRun(Path(path), checkpoint, places, notify)
