"""The tasks of `smoe bench learn`: planted structure in all the forms in which a layer may meet it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from smoe_paper.benchmarks.planted import PlantedData, PlantedTask, make_data


@dataclass(frozen=True)
class LearningTask:
    """A planted task and how students are trained on it.

    Attributes:
        planted: What is planted.
        ratio: Experts for each output channel of a student; the teacher has one for each region.
        optimizer: `adam`, or `sgd` with momentum.
        is_classification: Whether the largest of the teacher's spatial means is to be predicted, and not its output.
        for_all: Whether every student is trained on it, or the most important ones only.
    """

    planted: PlantedTask = field(default_factory=PlantedTask)
    ratio: int = 3
    optimizer: Literal["adam", "sgd"] = "adam"
    is_classification: bool = False
    for_all: bool = False


TASKS = {
    "one layer": LearningTask(PlantedTask(depth=1), for_all=True),
    "two layers": LearningTask(for_all=True),
    "three layers": LearningTask(PlantedTask(depth=3), for_all=True),
    "no structure": LearningTask(PlantedTask(has_structure=False, noise=0.5), for_all=True),
    "map per channel": LearningTask(PlantedTask(map_per_channel=True)),
    "biases": LearningTask(PlantedTask(has_bias=True)),
    "noise 0.5": LearningTask(PlantedTask(noise=0.5)),
    "all x 1e-3": LearningTask(PlantedTask(input_scale=1e-3, target_scale=1e-3)),
    "all x 1e3": LearningTask(PlantedTask(input_scale=1e3, target_scale=1e3)),
    "white regions": LearningTask(PlantedTask(region_length=0.0)),
    "X = 2 E": LearningTask(ratio=2),
    "X = 6 E": LearningTask(ratio=6),
    "classification": LearningTask(is_classification=True),
    "SGD": LearningTask(optimizer="sgd"),
}


@dataclass(frozen=True)
class Lesson:
    """Samples of a task, and what is to be learned from them.

    Attributes:
        task: The task.
        data: Samples; `targets` are replaced by `labels` in a classification.
        labels: Classes of training and test samples; None in a regression.
    """

    task: LearningTask
    data: PlantedData
    labels: tuple[Tensor, Tensor] | None = None

    def loss(self, output: Tensor, samples: Tensor) -> Tensor:
        """Training loss of the outputs for training samples with these numbers."""
        if self.labels is None:
            return F.mse_loss(output, self.data.targets[samples])
        return F.cross_entropy(output.mean(dim=(2, 3)), self.labels[0][samples])

    def error(self, output: Tensor) -> float:
        """Test error: relative mean squared error, or share of wrong classes."""
        if self.labels is None:
            return self.data.relative_error(output)
        return float((output.mean(dim=(2, 3)).argmax(dim=1) != self.labels[1]).float().mean())


def make_lesson(task: LearningTask, seed: int) -> Lesson:
    """Draws the samples of a task.

    Args:
        task: The task.
        seed: Seed of teacher, maps and samples.
    """
    data = make_data(task.planted, seed)
    if not task.is_classification:
        return Lesson(task, data)
    means = torch.cat([data.targets, data.test_targets]).mean(dim=(2, 3))
    classes = ((means - means.mean(dim=0)) / means.std(dim=0)).argmax(dim=1)
    return Lesson(task, data, (classes[: len(data.targets)], classes[len(data.targets) :]))
