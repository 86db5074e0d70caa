"""A trained run with its weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from accelerate import Accelerator
from torch import Tensor, nn

from smoe.training.distribution import make_accelerator
from smoe.training.evaluation import evaluate, predict
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
    def model(self) -> nn.Module:
        """The trained network."""
        return self.task.model

    def evaluate(self, split: str) -> dict[str, float]:
        """Computes the metrics on a split."""
        plan, task = self.recipe.training, self.task
        accelerator, model = self._prepare()
        samples, batch_size = task.splits[split], plan.evaluation_batch_size
        return evaluate(accelerator, model, samples, task.metrics, task.collate, batch_size, plan.num_workers)

    def predict(self, split: str) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields the prediction and the target of each batch of a split, in order.

        Raises:
            ValueError: If several processes run: their predictions would not be in order.
        """
        plan, task = self.recipe.training, self.task
        accelerator, model = self._prepare()
        if accelerator.num_processes > 1:
            raise ValueError(
                f"a split is predicted in order by one process, but {accelerator.num_processes} run; start the command "
                "without a launcher"
            )
        yield from predict(
            model,
            task.splits[split],
            plan.evaluation_batch_size,
            collate=task.collate,
            device=accelerator.device,
            num_workers=plan.num_workers,
        )

    def _prepare(self) -> tuple[Accelerator, nn.Module]:
        """The model for evaluation, if the task makes another one."""
        accelerator, task = make_accelerator(self.recipe.training), self.task
        return accelerator, accelerator.prepare(
            task.model if task.for_evaluation is None else task.for_evaluation(task.model)
        )
