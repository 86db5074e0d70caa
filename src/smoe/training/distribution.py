"""What processes that train a model together share, and its learning rate."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import InitProcessGroupKwargs, gather_object
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau

from smoe.training.plan import TrainingPlan
from smoe.training.run_directory import CheckpointError, State

Value = TypeVar("Value")

# Longer than any process waits for another in a training that goes on, such as for the writer of a checkpoint.
_TIMEOUT = timedelta(minutes=10)


def make_accelerator(plan: TrainingPlan) -> Accelerator:
    """Return an accelerator for a plan, whatever an earlier run of this process used."""
    # accelerate keeps the precision of the first accelerator for all later ones, and refuses another.
    AcceleratorState._reset_state()
    return Accelerator(
        cpu=plan.device == "cpu",
        mixed_precision=plan.precision,
        kwargs_handlers=[InitProcessGroupKwargs(timeout=_TIMEOUT)],
    )


def leave_processes() -> None:
    """End the group of processes that a launcher started. Call it when their work is done and its objects are deleted.

    If the interpreter ended before a thread of the group that holds a tensor, the process would abort.
    """
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return
    gc.collect()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def by_first(accelerator: Accelerator, work: Callable[[], Value]) -> Value:
    """Return what process 0 returns, in all processes; raise its `CheckpointError` in all of them."""
    if accelerator.num_processes == 1:
        return work()
    message: list[Any] = [None, None]
    if accelerator.is_main_process:
        try:
            message[0] = work()
        except CheckpointError as error:
            message[1] = str(error)
    torch.distributed.broadcast_object_list(message, src=0)
    if message[1] is not None:
        raise CheckpointError(message[1])
    return message[0]


def gather_process_states(accelerator: Accelerator, loss_total: Tensor) -> list[State]:
    """Return random numbers and share of the loss of all processes, in their order. Every process must call it."""
    device = accelerator.device
    state: State = {
        "torch_rng": torch.get_rng_state(),
        "cuda_rng": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "loss_total": float(loss_total),
    }
    return gather_object([state])


def restore_process_state(accelerator: Accelerator, states: Sequence[State], seed: int) -> float:
    """Restore the random numbers of this process, and return its share of the loss.

    With as many processes as when the run was stopped, a resumed run equals one that was not stopped. With another
    number, each batch still has the same samples, and the mean loss of the epoch is kept, but gradients are summed in
    another order, and a process that is new draws random numbers of its own, by `seed`: see
    tests/distributed/test_resume.py.
    """
    process, device = accelerator.process_index, accelerator.device
    if process < len(states):
        state = states[process]
        torch.set_rng_state(state["torch_rng"])
        if device.type == "cuda" and state["cuda_rng"] is not None:
            torch.cuda.set_rng_state(state["cuda_rng"], device)
    else:
        torch.manual_seed(seed)
    if len(states) == accelerator.num_processes:
        return states[process]["loss_total"]
    return sum(state["loss_total"] for state in states) / len(states)


def make_schedule(optimizer: torch.optim.Optimizer, plan: TrainingPlan) -> ReduceLROnPlateau | CosineSchedule:
    """Return the schedule of a plan; `step(monitored)` sets the learning rates after an epoch."""
    if plan.schedule == "cosine":
        return CosineSchedule(optimizer, plan)
    # Without a margin in the plan, torch's own: a hundredth of a percent.
    margin: dict[str, Any] = {"threshold": plan.min_delta, "threshold_mode": "abs"} if plan.min_delta > 0.0 else {}
    return ReduceLROnPlateau(
        optimizer, plan.monitor_mode, plan.plateau_factor, plan.plateau_patience, min_lr=plan.min_lr, **margin
    )


class CosineSchedule:
    """Linear warm-up, then half a cosine wave. The rate depends on the number of epochs only.

    (torch's schedules compute the rate from that of the epoch before, and warn about a run that is resumed at the end
    of an epoch.)
    """

    def __init__(self, optimizer: torch.optim.Optimizer, plan: TrainingPlan) -> None:
        self._optimizer, self._plan = optimizer, plan
        self._peaks = [group["lr"] for group in optimizer.param_groups]
        self.load_state_dict({"num_epochs": 0})

    def step(self, monitored: float, /) -> None:
        """Set the rates of the next epoch; the monitored metric has no effect."""
        del monitored
        self.load_state_dict({"num_epochs": self._num_epochs + 1})

    def state_dict(self) -> dict[str, Any]:
        return {"num_epochs": self._num_epochs}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        self._num_epochs = state["num_epochs"]
        for group, peak in zip(self._optimizer.param_groups, self._peaks, strict=True):
            group["lr"] = self._rate(peak)

    def _rate(self, peak: float) -> float:
        plan, epoch = self._plan, self._num_epochs
        if epoch < plan.warmup_epochs:
            return peak * (plan.warmup_start + (1.0 - plan.warmup_start) * epoch / plan.warmup_epochs)
        share = (epoch - plan.warmup_epochs) / (plan.max_epochs - plan.warmup_epochs)
        return plan.min_lr + (peak - plan.min_lr) * (1.0 + math.cos(math.pi * share)) / 2.0
