"""A trained run with its weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from smoe.training.distribution import make_accelerator
from smoe.training.evaluation import evaluate
from smoe.training.run_directory import RunDirectory
from smoe.training.task import Task
from smoe_paper.experiments.recipe import Recipe


@dataclass(frozen=True)
class OpenRun:
    """A trained run, with its weights loaded.

    Attributes:
        name: Name of the recipe it began as.
        recipe: Resolved recipe.
        task: Model, loss, metrics, and the splits that were asked for.
        directory: Run directory.
    """

    name: str
    recipe: Recipe
    task: Task
    directory: RunDirectory

    @property
    def model(self) -> torch.nn.Module:
        """The trained network."""
        return self.task.model

    def evaluate(self, split: str) -> dict[str, float]:
        """Computes the metrics on a split."""
        plan, task = self.recipe.training, self.task
        accelerator = make_accelerator(plan)
        trained = task.model if task.for_evaluation is None else task.for_evaluation(task.model)
        model = accelerator.prepare(trained)
        samples, batch_size = task.splits[split], plan.evaluation_batch_size
        return evaluate(accelerator, model, samples, task.metrics, task.collate, batch_size, plan.num_workers)
