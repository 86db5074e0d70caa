"""Networks converted by `smoe.convert`, untrained and trained, on planted structure."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from smoe.nn import convert
from smoe.regression._nets import UNet
from smoe_paper.benchmarks.learn_students import convolution, error_of, train
from smoe_paper.benchmarks.learn_tasks import LearningTask, Lesson, PlantedTask, make_lesson


def _unet(lesson: Lesson) -> nn.Module:
    first, *_, last = lesson.task.planted.channels
    return UNet(first, last, filters=8)


# What is converted: the network, and the depth of the teacher.
UPCYCLING: dict[str, tuple[Callable[[Lesson], nn.Module], int]] = {
    "convert two layers": (convolution, 2),
    "convert three layers": (convolution, 3),
    "convert a U-Net": (_unet, 2),
}
# Steps after which a trained network is looked at again, plain and converted.
FURTHER_STEPS = (20, 100, 300)


def measure_upcycling(name: str, seed: int, num_steps: int) -> Iterator[dict[str, Any]]:
    """The rows of one network with one seed.

    Args:
        name: Key of `UPCYCLING`.
        seed: Seed of data, starts and batches.
        num_steps: Steps of the first training.
    """
    make_net, depth = UPCYCLING[name]
    lesson = make_lesson(LearningTask(PlantedTask(depth=depth)), seed)
    example = lesson.data.inputs[:2]

    def row(student: str, net: nn.Module, started: float) -> dict[str, Any]:
        return {
            "task": name,
            "student": student,
            "seed": seed,
            "num_steps": num_steps,
            "error": error_of(net, lesson),
            "seconds": time.process_time() - started,
            "parameters": sum(parameter.numel() for parameter in net.parameters()),
        }

    torch.manual_seed(seed)
    plain, started = make_net(lesson), time.process_time()
    converted = convert(plain, example_input=example, num_experts=3.0)
    train(converted, lesson, seed, num_steps)
    yield row("converted", converted, started)
    started = time.process_time()
    train(plain, lesson, seed, num_steps)
    yield row("trained", plain, started)
    for kind in ("plain", "upcycled"):
        net = copy.deepcopy(plain)
        if kind == "upcycled":
            net = convert(plain, example_input=example, num_experts=3.0, start="filters")
            yield row("trained, then upcycled, 0", net, time.process_time())
        for further in FURTHER_STEPS:
            # Each from the same start, because the moments of an optimiser belong to one training.
            trained, started = copy.deepcopy(net), time.process_time()
            train(trained, lesson, seed + 1000, further)
            yield row(f"trained, then {kind}, {further}", trained, started)
