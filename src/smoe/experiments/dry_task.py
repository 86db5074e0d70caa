"""A recipe's task without its data, for plans made before anything is trained."""

from __future__ import annotations

from dataclasses import dataclass

from smoe.training.task import Task


@dataclass(frozen=True)
class DryTask:
    """A task without data.

    Attributes:
        task: Model, optimiser and loss; the splits are empty.
        input_shape: Shape of the input of one sample.
        target_shape: Shape of the target of one sample.
        num_train_samples: Number of samples of the training split.
        num_validation_samples: Number of samples of the validation split.
        source: Where these numbers come from.
        num_classes: Number of classes, if the targets are classes and not fields.
    """

    task: Task
    input_shape: tuple[int, ...]
    target_shape: tuple[int, ...]
    num_train_samples: int
    num_validation_samples: int
    source: str
    num_classes: int | None = None
