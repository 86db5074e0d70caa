"""Trains recipes, and opens runs that were trained.

A path that a recipe.json names is used if it lies inside the run or the working directory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

import torch

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

CACHE = "cache_dir"
"""Folder that keeps simulated data: without it they are simulated again, and nothing is refused."""

CheckpointName = Literal["best", "last"]


def data_paths(recipe: Recipe) -> dict[str, Path | None]:
    """The fields of the recipe's data that can hold a path, which a command takes as `--data.FIELD PATH`."""
    hints = type_hints(type(recipe.data))
    names = [field.name for field in fields(recipe.data) if is_path(hints[field.name])]
    return {name: getattr(recipe.data, name) for name in names}


def with_data(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    return replace(recipe, data=replace(recipe.data, **changes))


def outside_paths(recipe: Recipe, directory: RunDirectory) -> dict[str, Path]:
    """The paths of a recipe's data that lie outside its run and the working directory."""
    return {
        name: path for name, path in data_paths(recipe).items() if path is not None and not directory.may_name(path)
    }


def check_paths(directory: RunDirectory, outside: Mapping[str, Path]) -> None:
    """Refuses a run that would have files opened or written outside."""
    for name, path in outside.items():
        raise RunError(
            f"{directory.recipe_file}: data.{name} is {str(path)!r}, outside the run and the working directory: give "
            f"the place as --data.{name.replace('_', '-')} PATH (in Python data={{{name!r}: PATH}})"
        )
    for parent, folders, files in os.walk(directory.path):
        for entry in (Path(parent) / name for name in (*folders, *files)):
            if entry.is_symlink() and not directory.may_name(entry):
                raise RunError(
                    f"{directory.path} holds a link that leads out of it and of the working directory, "
                    f"{str(entry.relative_to(directory.path))!r}: remove it, or work in a folder that holds both"
                )


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
    experiment, plain = experiment_of(recipe), {"name": name, "recipe": recipe.plain()}
    with directory.lock():
        check_paths(directory, {})
        may_differ = resumable_fields(recipe.training) | {f"data.{name}" for name in data_paths(recipe)}
        directory.check(plain, resume=resume, may_differ=may_differ)
        check_monitor(recipe.training, metric_names(experiment.build(recipe, (), _silence).metrics))
        loop = Loop(experiment.build(recipe, notify=notify), recipe.training, directory, reporter)
        loop.begin(plain)
        before = recipe.pretraining()
        if before is not None and not directory.last_checkpoint.exists():
            folder = RunDirectory(directory.path / "pretraining")
            train(name, before, folder.path, resume=True, reporter=reporter, notify=notify)
            loop.task.model.load_state_dict(load_checkpoint(folder.best_checkpoint)["model"])
        return loop.fit(resume=resume)


def open_run(
    path: Path | str,
    checkpoint: CheckpointName = "best",
    splits: tuple[str, ...] = ("test",),
    notify: Notify = print,
    data: Mapping[str, Any] | None = None,
) -> OpenRun:
    """Builds a run's model again, loads its weights, and opens the data of some splits.

    Args:
        data: Fields of the recipe's data to replace, such as `store`: a path that its recipe.json names is used if it
            lies inside the run or the working directory; a `cache_dir` elsewhere is ignored.

    Example:
        >>> run = open_run("runs/weather-smoe-0", data={"store": "stores/era5"})  # doctest: +SKIP
        >>> prediction, truth = next(run.predict("test"))  # doctest: +SKIP
    """
    directory, data = RunDirectory(path), dict(data or {})
    name, recipe = read_recipe(directory)
    experiment, outside = experiment_of(recipe), outside_paths(recipe, directory)
    if outside.pop(CACHE, None) is not None:
        data.setdefault(CACHE, None)
    needs_data = bool(splits) or not experiment.builds_without_data
    check_paths(directory, {name: path for name, path in outside.items() if needs_data and name not in data})
    types = data_paths(recipe)
    recipe = with_data(recipe, {key: Path(v) if key in types and v is not None else v for key, v in data.items()})
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
        if key in store.runs() and RunDirectory(folder).best_checkpoint.exists():
            return open_run(folder, splits=splits, notify=_silence, data=data)
    return None


def read_recipe(directory: RunDirectory) -> tuple[str, Recipe]:
    """The name of the recipe that a run began as, and the recipe itself."""
    stored, file = directory.read_recipe(), directory.recipe_file
    name, plain = stored.get("name"), stored.get("recipe")
    if not isinstance(name, str):
        raise RunError(f"{file}: name must be a text, got {name!r}")
    if not isinstance(plain, dict):
        raise RunError(f"{file}: recipe must be a dictionary, got {shorten(plain)}")
    try:
        return name, recipe_from_plain(plain)
    except RecipeError as error:
        raise RunError(f"{file}: {error}") from error


def _silence(text: str) -> None:
    del text


def set_num_threads(recipe: Recipe) -> None:
    if recipe.training.num_threads is not None:
        torch.set_num_threads(recipe.training.num_threads)
