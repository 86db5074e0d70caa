"""Trains recipes, and opens runs that were trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

import torch

from smoe.experiments.experiment import Notify
from smoe.experiments.initial_weights import check_initial_weights, load_initial_weights
from smoe.experiments.migrations import SCHEMA
from smoe.experiments.open_run import OpenRun
from smoe.experiments.plain import RecipeError, shorten
from smoe.experiments.recipe import Recipe
from smoe.experiments.recipe_files import recipe_from_plain
from smoe.experiments.registry import experiment_of
from smoe.experiments.result_tables.stored_runs import DATA_PLACES
from smoe.metrics import metric_names
from smoe.training.checkpoint_parts import load_whole
from smoe.training.checkpoints import CheckpointError
from smoe.training.freed_memory import keep_freed_memory
from smoe.training.loop import Loop
from smoe.training.lost_process import WatchedProcesses
from smoe.training.monitor import check_monitor
from smoe.training.plan import resumable_fields
from smoe.training.progress import Reporter
from smoe.training.run_directory import Record, RunDirectory, RunError

CheckpointName = Literal["best", "last"]


def train(
    name: str,
    recipe: Recipe,
    output_dir: Path,
    *,
    resume: bool = False,
    reporter: Reporter | None = None,
    notify: Notify = print,
    processes: WatchedProcesses | None = None,
) -> Record:
    """Trains a recipe and returns its last record.

    What can be refused without data is refused before they are made: a directory that cannot be written or is in use, a
    recipe that differs from the run's, a metric that does not exist.

    Args:
        name: Name of the recipe it began as.
        recipe: Resolved recipe.
        output_dir: Run directory.
        resume: Continue the run that is there.
        reporter: Logs the progress of the training.
        notify: Receives messages about what is being made before the training.
        processes: The processes of the training, if they are watched already.
    """
    set_num_threads(recipe)
    keep_freed_memory()
    directory = RunDirectory(output_dir)
    directory.check_writable()
    experiment, plain = experiment_of(recipe), _stored(name, recipe)
    with directory.lock():
        may_differ = resumable_fields(recipe.training) | {f"data.{place}" for place in DATA_PLACES}
        directory.check(
            plain, resume=resume, complete=lambda stored: _complete(stored, directory), may_differ=may_differ
        )
        check_monitor(recipe.training, metric_names(experiment.build_dry(recipe).task.metrics))
        has_begun = resume and directory.last_checkpoint.exists()
        if recipe.init_from is not None and not has_begun:
            check_initial_weights(recipe.init_from)
        task = experiment.build(recipe, notify=notify)
        if recipe.init_from is not None and not has_begun:
            load_initial_weights(task.model, recipe.init_from)
            notify(f"starting from the best weights of {recipe.init_from}")
        loop = Loop(task, recipe.training, directory, reporter, processes)
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

    Nothing is written outside the run directory because a recipe.json says so: data are read where the recipe names
    them, but its `cache_dir` is ignored unless it is in the run directory or given in `data`.

    Args:
        path: Run directory, wherever it was moved.
        checkpoint: `best`, or `last`.
        splits: Data to make; the training split is not needed to evaluate.
        notify: Receives messages about what is being made.
        data: Fields of the recipe's data to replace, such as `store` where the data were moved.
    """
    directory = RunDirectory(path)
    name, recipe = read_recipe(directory)
    if data:
        recipe = replace(recipe, data=replace(recipe.data, **data))
    if "cache_dir" not in (data or {}):
        recipe = without_foreign_cache(recipe, directory)
    set_num_threads(recipe)
    file = directory.best_checkpoint if checkpoint == "best" else directory.last_checkpoint
    if checkpoint == "best" and not file.exists():
        raise CheckpointError(f"{path} has no best checkpoint yet: no epoch has ended; try --checkpoint last")
    weights = load_whole(file)["model"]
    task = experiment_of(recipe).build(recipe, splits, notify)
    try:
        task.model.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointError(f"the weights of {file} do not fit the recipe beside them: {error}") from error
    task.model.eval()
    return OpenRun(name, recipe, task, directory)


def read_recipe(directory: RunDirectory) -> tuple[str, Recipe]:
    """The name of the recipe that a run began as, and the recipe itself.

    Raises:
        RunError: If the directory holds no run, or a field of recipe.json is unknown, missing or of another type.
    """
    return _parse_stored(directory.read_recipe(), str(directory.recipe_file))


def _stored(name: str, recipe: Recipe) -> dict[str, Any]:
    return {"name": name, "schema": SCHEMA, "recipe": recipe.plain()}


def _complete(stored: dict[str, Any], directory: RunDirectory) -> dict[str, Any]:
    """What an earlier version stored, as this one would have stored it."""
    return _stored(*_parse_stored(stored, str(directory.recipe_file)))


def _parse_stored(stored: dict[str, Any], place: str) -> tuple[str, Recipe]:
    """The name and the recipe; `place` begins the message of an error."""
    name, schema = stored.get("name"), stored.get("schema", 1)
    if not isinstance(name, str):
        raise RunError(f"{place}: name must be a text, got {name!r}")
    if not isinstance(schema, int) or isinstance(schema, bool):
        raise RunError(f"{place}: schema must be a whole number, got {schema!r}")
    if not isinstance(stored.get("recipe"), dict):
        raise RunError(f"{place}: recipe must be a dictionary, got {shorten(stored.get('recipe'))}")
    try:
        return name, recipe_from_plain(stored["recipe"], schema)
    except RecipeError as error:
        raise RunError(f"{place}: {error}") from error


def without_foreign_cache(recipe: Recipe, directory: RunDirectory) -> Recipe:
    """The recipe without a folder for simulated data that is outside the run directory.

    A recipe.json from others does not decide where files are written.
    """
    cache_dir: Path | None = getattr(recipe.data, "cache_dir", None)
    if cache_dir is None or cache_dir.resolve().is_relative_to(directory.path.resolve()):
        return recipe
    return replace(recipe, data=replace(recipe.data, cache_dir=None))


def place_fields(recipe: Recipe) -> list[str]:
    """Fields of the recipe's data that hold where data are kept."""
    return [field.name for field in fields(recipe.data) if field.name in DATA_PLACES]


def set_num_threads(recipe: Recipe) -> None:
    """Gives torch the threads that the recipe asks for."""
    if recipe.training.num_threads is not None:
        torch.set_num_threads(recipe.training.num_threads)
