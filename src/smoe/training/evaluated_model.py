"""The model that is evaluated: the one that trains, an average of its weights, or one for another grid."""

from __future__ import annotations

import copy

import torch
from accelerate import Accelerator
from torch import nn

from smoe.training.plan import TrainingPlan
from smoe.training.task import Task
from smoe.training.weight_average import WeightAverage


class EvaluatedModel:
    """Makes the model to evaluate from the one that trains.

    Must be made before accelerate wraps the model: a wrapped forward, copied, would still call the original.

    Args:
        task: Task that is trained.
        plan: Plan that decides whether weights are averaged.
        accelerator: Accelerator of the run.
    """

    def __init__(self, task: Task, plan: TrainingPlan, accelerator: Accelerator) -> None:
        self._task, self._accelerator = task, accelerator
        device = accelerator.device
        self.average = None if plan.average_every is None else WeightAverage(task.model.to(device), plan)
        needs_twin = task.for_evaluation is not None and self.average is None
        self._twin = copy.deepcopy(task.model).to(device) if needs_twin else None

    @property
    def weights(self) -> nn.Module:
        """The model whose weights are stored as the best: the average, or the one that trains."""
        return self._task.model if self.average is None else self.average.model

    def get(self, wrapped: nn.Module) -> nn.Module:
        """Returns the model to evaluate. Every process must call this method.

        Args:
            wrapped: Model that trains, wrapped by accelerate; returned if nothing else is evaluated.
        """
        if self.average is not None:
            model = self.average.model
        elif self._twin is not None:
            model = self._twin
            model.load_state_dict(self._task.model.state_dict())
        else:
            return wrapped
        # As DistributedDataParallel does for the model it wraps: the running means are those of process 0.
        broadcast_state(self._accelerator, model)
        return model if self._task.for_evaluation is None else self._task.for_evaluation(model)


def broadcast_state(accelerator: Accelerator, model: nn.Module) -> None:
    """Gives all processes the weights and buffers of process 0."""
    if accelerator.num_processes > 1:
        for tensor in model.state_dict().values():
            torch.distributed.broadcast(tensor, src=0)
