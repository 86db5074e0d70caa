"""Trains recipes, and opens runs that were trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from smoe.experiments.build import build_task
from smoe.experiments.initial_weights import load_initial_weights
from smoe.experiments.recipes import Recipe, recipe_from_plain, recipe_to_plain
from smoe.paper.weather.recipes import WeatherRecipe
from smoe.training.checkpoints import CheckpointError, load_checkpoint
from smoe.training.devices import make_accelerator
from smoe.training.evaluation import evaluate
from smoe.training.freed_memory import keep_freed_memory
from smoe.training.loop import Loop
from smoe.training.progress import Reporter
from smoe.training.run_directory import Record, RunDirectory, RunError
from smoe.training.task import Task

CheckpointName = Literal["best", "last"]


@dataclass(frozen=True)
class OpenRun:
    """A trained run, with its weights loaded."""

    name: str
    recipe: Recipe
    task: Task
    directory: RunDirectory

    def evaluate(self, split: str) -> dict[str, float]:
        """The metrics on a split."""
        plan, task = self.recipe.training, self.task
        accelerator = make_accelerator(plan)
        trained = task.model if task.for_evaluation is None else task.for_evaluation(task.model)
        model = accelerator.prepare(trained)
        samples, batch_size = task.splits[split], plan.evaluation_batch_size
        return evaluate(accelerator, model, samples, task.metrics, task.collate, batch_size, plan.num_workers)


def train(
    name: str,
    recipe: Recipe,
    output_dir: Path,
    *,
    resume: bool = False,
    reporter: Reporter | None = None,
    say: Callable[[str], None] = print,
) -> Record:
    """Trains a recipe and returns its last record.

    Args:
        name: of the recipe it began as.
        recipe: resolved.
        output_dir: the run directory.
        resume: continue the run that is there.
        reporter: hears of the progress.
        say: told what is being made before.
    """
    set_num_threads(recipe)
    keep_freed_memory()
    directory = RunDirectory(output_dir)
    plain = {"name": name, "recipe": recipe_to_plain(recipe)}
    directory.check(plain, resume=resume, complete=_complete)
    # Made before the directory is claimed: a recipe that cannot be built leaves nothing behind.
    task = build_task(recipe, say=say)
    has_begun = resume and directory.last_checkpoint.exists()
    if isinstance(recipe, WeatherRecipe) and recipe.init_from is not None and not has_begun:
        load_initial_weights(task.model, recipe.init_from)
        say(f"starting from the best weights of {recipe.init_from}")
    loop = Loop(task, recipe.training, directory, reporter)
    loop.accelerator.wait_for_everyone()
    if loop.accelerator.is_main_process:
        directory.begin(plain)
    return loop.fit(resume=resume)


def open_run(
    path: Path,
    checkpoint: CheckpointName = "best",
    splits: tuple[str, ...] = (),
    say: Callable[[str], None] = print,
) -> OpenRun:
    """Builds a run's model again and loads its weights.

    Args:
        path: the run directory.
        checkpoint: `best`, or `last`.
        splits: data to make; the training split is not needed to evaluate.
        say: told what is being made.
    """
    directory = RunDirectory(path)
    name, recipe = read_recipe(directory)
    set_num_threads(recipe)
    file = directory.best_checkpoint if checkpoint == "best" else directory.last_checkpoint
    if checkpoint == "best" and not file.exists():
        raise CheckpointError(f"{path} has no best checkpoint yet: no epoch has ended; try --checkpoint last")
    weights = load_checkpoint(file)["model"]
    task = build_task(recipe, splits, say)
    try:
        task.model.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointError(f"the weights of {file} do not fit the recipe beside them: {error}") from error
    return OpenRun(name, recipe, task, directory)


def read_recipe(directory: RunDirectory) -> tuple[str, Recipe]:
    """The name of the recipe that a run began as, and the recipe itself.

    Raises:
        RunError: if the directory holds no run.
    """
    stored = directory.read_recipe()
    try:
        return stored["name"], recipe_from_plain(stored["recipe"])
    except (KeyError, TypeError) as error:
        raise RunError(f"{directory.recipe_file} is not the recipe of a run: {error}") from error


def _complete(stored: dict[str, Any]) -> dict[str, Any]:
    """What an older version stored, as this one would have: fields that came later have their defaults."""
    return {"name": stored["name"], "recipe": recipe_to_plain(recipe_from_plain(stored["recipe"]))}


def set_num_threads(recipe: Recipe) -> None:
    """Gives torch the threads that the recipe asks for."""
    if recipe.training.num_threads is not None:
        torch.set_num_threads(recipe.training.num_threads)


def default_output_dir(name: str, recipe: Any) -> Path:
    """`runs/heat-smoe-0` for seed 0 of heat/smoe."""
    return Path("runs") / f"{name.replace('/', '-')}-{recipe.seed}"
