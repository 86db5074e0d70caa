"""A recipe's task without its data: for checks before the data are made, and for steps on random data."""

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
        num_classes: Number of classes, if the targets are classes and not fields.
    """

    task: Task
    input_shape: tuple[int, ...]
    target_shape: tuple[int, ...]
    num_classes: int | None = None
