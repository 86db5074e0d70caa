"""The processes of a training, and how they hold a model: each the whole of it, or each a shard of its parameters."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import InitProcessGroupKwargs
from torch import Tensor, nn

from smoe.training.checkpoints import CheckpointError, State, load_checkpoint, save_checkpoint
from smoe.training.plan import TrainingPlan

Value = TypeVar("Value")

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


class Distribution:
    """A model and its optimiser. Each process holds all of it, in `DistributedDataParallel` if there are several.

    What `read` returns fits, whatever processes have written it: a run can be resumed with another number of processes
    and another distribution.

    Args:
        accelerator: Accelerator of the run.
        model: Model to train.
        optimizer: Its optimiser.

    Attributes:
        model: Model to call in training.
        optimizer: Optimiser, wrapped by accelerate.
    """

    def __init__(self, accelerator: Accelerator, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._accelerator = accelerator
        self.model, self.optimizer = self._prepare(model, optimizer)

    def _prepare(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[Any, Any]:
        return self._accelerator.prepare(model, optimizer)

    def without_sum(self) -> AbstractContextManager[None]:
        """While active, gradients are not summed over processes: for all parts of a batch but the last."""
        return self._accelerator.no_sync(self.model)

    def whole(self, model: nn.Module) -> AbstractContextManager[None]:
        """While active, parameters are whole, so that parts of a model can be used without a pass through it."""
        del model
        return nullcontext()

    def add(self, model: nn.Module) -> nn.Module:
        """Distributes another model, with parameters like those of the first."""
        return model

    def save(self, path: Path, state: State) -> None:
        """Writes a checkpoint, whole or not at all. All processes must call it.

        Args:
            path: File of the checkpoint.
            state: Plain values, and states of the model, of others like it and of the optimiser.

        Raises:
            CheckpointError: In all processes, if one of them cannot write.
        """
        by_first(self._accelerator, lambda: save_checkpoint(path, state, make_folder=False))

    def read(self, path: Path) -> State:
        """Reads a checkpoint of any distribution. All processes must call it.

        Process 0 reads: the others need not see its file system, and never see an older file.

        Raises:
            CheckpointError: In all processes, if a file is missing or damaged.
        """
        return by_first(self._accelerator, lambda: load_checkpoint(path))

    def whole_state_of(self, model: nn.Module) -> State:
        """The whole state of a model, in all processes. All processes must call it."""
        return model.state_dict()

    def load(self, model: nn.Module, state: State) -> None:
        """Loads a state that was read."""
        model.load_state_dict(state)

    def load_optimizer(self, state: State) -> None:
        """Loads a state of the optimiser that was read."""
        self.optimizer.load_state_dict(state)

    def end_evaluation(self, model: nn.Module) -> None:
        """Frees what an evaluation leaves."""
        del model


def sum_over_processes(accelerator: Accelerator, tensor: Tensor) -> Tensor:
    """Returns the sum of a tensor over all processes, to every one of them."""
    return cast(Tensor, accelerator.reduce(tensor, reduction="sum"))


def by_first(accelerator: Accelerator, work: Callable[[], Value]) -> Value:
    """What process 0 returns, in all processes; an error of a checkpoint is raised in all of them."""
    if accelerator.num_processes == 1:
        return work()
    message: list[Any] = _outcome(work) if accelerator.is_main_process else [None, None]
    torch.distributed.broadcast_object_list(message, src=0)
    if message[1] is not None:
        raise CheckpointError(message[1])
    return message[0]


def by_all(accelerator: Accelerator, work: Callable[[], object]) -> None:
    """Work of each process; an error of a checkpoint in any is raised in all of them."""
    errors: list[str] = [""] * accelerator.num_processes
    torch.distributed.all_gather_object(errors, _outcome(work)[1] or "")
    if any(errors):
        raise CheckpointError(next(filter(None, errors)))


def _outcome(work: Callable[[], Any]) -> list[Any]:
    try:
        return [work(), None]
    except CheckpointError as error:
        return [None, str(error)]


def gather_process_states(accelerator: Accelerator, loss_total: Tensor) -> list[State]:
    """Returns random numbers and share of the loss of all processes, in their order. Every process must call it.

    Args:
        accelerator: Accelerator of the run.
        loss_total: Sum of the losses of this process in the epoch so far, a scalar.
    """
    device = accelerator.device
    state = {
        "torch_rng": torch.get_rng_state(),
        "cuda_rng": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "loss_total": float(loss_total),
    }
    if accelerator.num_processes == 1:
        return [state]
    states: list[Any] = [None] * accelerator.num_processes
    torch.distributed.all_gather_object(states, state)
    return states


def restore_process_state(accelerator: Accelerator, states: Sequence[State], seed: int) -> float:
    """Restores the random numbers of this process, and returns its share of the loss.

    With as many processes as when the run was stopped, a resumed run equals one that was not stopped. With another
    number, each batch still has the same samples, and the mean loss of the epoch is kept, but gradients are summed in
    another order, and a process that is new draws random numbers of its own. Without random numbers in the model,
    weights of order 1 differed by less than 1e-6 after 120 steps of Adam in float32; the tests allow 1e-5
    (tests/distributed/test_resume.py).

    Args:
        accelerator: Accelerator of the run.
        states: States of the processes that were stopped.
        seed: Seed of a process that is new.
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
