"""What one process does for all: it reads or writes, and the others learn of the result or of the error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from accelerate import Accelerator

from smoe.training.checkpoints import CheckpointError

Value = TypeVar("Value")


def by_first(accelerator: Accelerator, work: Callable[[], Value]) -> Value:
    """What process 0 returns, in all processes; an error of a checkpoint is raised in all of them."""
    if accelerator.num_processes == 1:
        return work()
    message: list[Any] = _outcome(work) if accelerator.is_main_process else [None, None]
    torch.distributed.broadcast_object_list(message, src=0)
    if message[1] is not None:
        raise CheckpointError(message[1])
    return message[0]


def by_all(accelerator: Accelerator, work: Callable[[], Value]) -> list[Value]:
    """What each process returns, in all processes; an error of a checkpoint in any is raised in all of them."""
    messages: list[Any] = [[None, None] for _ in range(accelerator.num_processes)]
    torch.distributed.all_gather_object(messages, _outcome(work))
    error = next((message[1] for message in messages if message[1] is not None), None)
    if error is not None:
        raise CheckpointError(error)
    return [message[0] for message in messages]


def _outcome(work: Callable[[], Any]) -> list[Any]:
    try:
        return [work(), None]
    except CheckpointError as error:
        return [None, str(error)]
