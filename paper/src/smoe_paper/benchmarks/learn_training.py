"""How the students of `smoe bench learn` are trained and tested."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from smoe_paper.benchmarks.learn_tasks import Lesson

BATCH_SIZE = 16
LEARNING_RATES = {"adam": 1e-2, "sgd": 0.1}


def train(net: nn.Module, lesson: Lesson, seed: int, num_steps: int) -> None:
    """Trains a network in place, the same batches for every student of a seed."""
    generator = torch.Generator().manual_seed(seed)
    learning_rate = LEARNING_RATES[lesson.task.optimizer]
    parameters = [parameter for parameter in net.parameters() if parameter.requires_grad]
    optimizer = (
        torch.optim.Adam(parameters, lr=learning_rate)
        if lesson.task.optimizer == "adam"
        else torch.optim.SGD(parameters, lr=learning_rate, momentum=0.9)
    )
    net.train()
    for _ in range(num_steps):
        samples = torch.randint(len(lesson.data.inputs), (BATCH_SIZE,), generator=generator)
        optimizer.zero_grad()
        lesson.loss(net(lesson.data.inputs[samples]), samples).backward()
        optimizer.step()


def error_of(net: nn.Module, lesson: Lesson) -> float:
    """Test error of a network, in evaluation mode."""
    net.eval()
    with torch.no_grad():
        outputs: list[Tensor] = [net(inputs) for inputs in lesson.data.test_inputs.split(64)]
    return lesson.error(torch.cat(outputs))
