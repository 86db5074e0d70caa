"""The model that is evaluated: the one that trains, an average of its weights, or one for another grid."""

from __future__ import annotations

import copy

import torch
from accelerate import Accelerator
from torch import nn

from smoe.training.distribution import Distribution
from smoe.training.plan import TrainingPlan
from smoe.training.task import Task
from smoe.training.weight_average import WeightAverage


class EvaluatedModel:
    """Makes the model to evaluate from the one that trains.

    Must be made before the model is distributed: a wrapped forward, copied, would still call the original.

    Args:
        task: Task that is trained.
        plan: Plan that decides whether weights are averaged.
        accelerator: Accelerator of the run.
    """

    def __init__(self, task: Task, plan: TrainingPlan, accelerator: Accelerator) -> None:
        self._task, self._accelerator = task, accelerator
        device = accelerator.device
        self.average = None if plan.average_every is None else WeightAverage(task.model.to(device), plan)
        # A model for another grid is made from a whole one.
        needs_twin = task.for_evaluation is not None and (self.average is None or plan.sharding == "full")
        self._twin = copy.deepcopy(task.model).to(device) if needs_twin else None

    @property
    def weights(self) -> nn.Module:
        """The model whose weights are stored as the best: the average, or the one that trains."""
        return self._task.model if self.average is None else self.average.model

    def distribute(self, distribution: Distribution) -> None:
        """Lets the processes hold the average as they hold the model that trains."""
        if self.average is not None:
            self.average.model = distribution.add(self.average.model)

    def get(self, distribution: Distribution) -> nn.Module:
        """Returns the model to evaluate. Every process must call this method.

        Args:
            distribution: Model that trains; returned if nothing else is evaluated.
        """
        weights = self.weights
        self._send_buffers(weights)
        if self._task.for_evaluation is None:
            return distribution.model if self.average is None else weights
        if self._twin is None:
            return self._task.for_evaluation(weights)
        self._twin.load_state_dict(distribution.whole_state_of(weights))
        return self._task.for_evaluation(self._twin)

    def _send_buffers(self, model: nn.Module) -> None:
        """Gives all processes the buffers of process 0, such as running means, in which they differ."""
        if self._accelerator.num_processes > 1:
            for buffer in model.buffers():
                torch.distributed.broadcast(buffer, src=0)
