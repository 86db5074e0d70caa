"""Devices, precision and processes, by means of accelerate."""

from __future__ import annotations

import gc
from datetime import timedelta

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import InitProcessGroupKwargs

from smoe.training.distribution import Distribution, WholeModel
from smoe.training.plan import TrainingPlan
from smoe.training.task import Task

# Longer than any process waits for another in a training that goes on, such as for the writer of a checkpoint.
_TIMEOUT = timedelta(minutes=10)


def make_accelerator(plan: TrainingPlan) -> Accelerator:
    """Returns an accelerator for a plan, whatever an earlier run of this process used."""
    # accelerate keeps the precision of the first accelerator for all later ones, and refuses another.
    AcceleratorState._reset_state()
    return Accelerator(
        cpu=plan.device == "cpu",
        mixed_precision=plan.precision,
        kwargs_handlers=[InitProcessGroupKwargs(timeout=_TIMEOUT)],
    )


def distribute(accelerator: Accelerator, task: Task, plan: TrainingPlan) -> Distribution:
    """Distributes the model and the optimiser of a task over the processes, as a plan says."""
    if plan.sharding == "none" or accelerator.num_processes == 1:
        return WholeModel(accelerator, task.model, task.optimizer)
    from smoe.training.sharded_model import ShardedModel

    # An auxiliary loss reads the scores of the gates between the forward and the backward pass.
    is_freed = task.auxiliary_loss is None
    return ShardedModel(accelerator, task.model, task.optimizer, reshard_after_forward=is_freed)


def leave_processes() -> None:
    """Ends the group of processes that a launcher started. Call it when their work is done and its objects are deleted.

    A thread of the group may still hold a tensor of the last broadcast. If the interpreter ended before this thread,
    the process would abort after all its work was done.
    """
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return
    gc.collect()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
