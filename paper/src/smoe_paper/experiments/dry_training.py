"""Training steps of a recipe on random data of the true shape."""

from __future__ import annotations

import torch

from smoe.nn import track_loss_scale
from smoe.training.distribution import make_accelerator
from smoe.training.plan import TrainingPlan
from smoe_paper.experiments.dry_task import DryTask


class DryTraining:
    """A task without data, on the device and in the precision of a plan.

    Args:
        dry: Task.
        plan: Plan that gives device and precision.
    """

    def __init__(self, dry: DryTask, plan: TrainingPlan) -> None:
        self.dry = dry
        self.accelerator = make_accelerator(plan)
        self.model, self.optimizer = self.accelerator.prepare(dry.task.model, dry.task.optimizer)

    def batch(self, batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Random inputs and targets on the device."""
        device, dry = self.accelerator.device, self.dry
        input = torch.randn(batch_size, *dry.input_shape, device=device)
        if dry.num_classes is not None:
            return input, torch.randint(dry.num_classes, (batch_size, *dry.target_shape), device=device)
        return input, torch.randn(batch_size, *dry.target_shape, device=device)

    def loss(self, input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The loss of a batch, with the auxiliary loss if there is one."""
        task = self.dry.task
        loss = task.loss(self.model(input), target)
        return loss if task.auxiliary_loss is None else loss + task.auxiliary_loss(self.model)

    def compute_gradients(self, input: torch.Tensor, target: torch.Tensor) -> None:
        """Forward and backward passes of a batch."""
        self.accelerator.backward(track_loss_scale(self.loss(input, target), self.model))

    def update(self) -> None:
        """The optimiser's step."""
        self.optimizer.step()
        self.optimizer.zero_grad()
