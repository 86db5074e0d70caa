"""The model under training: how processes hold it, its learning rate, the average of its weights.

Each process holds the whole of a model, or a shard of its parameters.
"""

from __future__ import annotations

import copy
import gc
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import InitProcessGroupKwargs
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from smoe.nn._sharding import reshard, shard, unsharded
from smoe.nn._shared_parameters import local_part
from smoe.training.plan import TrainingPlan
from smoe.training.run_directory import CheckpointError, State, load_checkpoint, save_checkpoint
from smoe.training.task import Task

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


class Distribution:
    """A model and its optimiser: all of it in each process, or a shard of every parameter and its state (FSDP2).

    Checkpoints do not depend on it: a run can be resumed with another number of processes and another distribution.
    `shards` are options of `smoe.nn.shard`; None leaves the model whole, in `DistributedDataParallel` if there are
    several processes. `model` and `optimizer` are what to call in training.
    """

    model: Any
    optimizer: Any

    def __init__(
        self,
        accelerator: Accelerator,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        shards: dict[str, Any] | None = None,
    ) -> None:
        self._accelerator, self._shards = accelerator, shards
        if shards is None:
            self.model, self.optimizer = accelerator.prepare(model, optimizer)
            return
        from torch.distributed.device_mesh import init_device_mesh

        self._shards = {"mesh": init_device_mesh(accelerator.device.type, (accelerator.num_processes,)), **shards}
        # Without DistributedDataParallel: places the model and casts in its forward pass.
        model = accelerator.prepare_model(model, evaluation_mode=True)
        names = {parameter: name for name, parameter in model.named_parameters()}
        if optimizer.state:
            raise ValueError("the optimiser has made steps before its model was sharded; start with a new one")
        self.model = self.add(model)
        parameters = dict(model.named_parameters())
        for group in optimizer.param_groups:
            unknown = [tuple(parameter.shape) for parameter in group["params"] if parameter not in names]
            if unknown:
                raise ValueError(f"the optimiser has parameters that are not in the model, of shapes {unknown}")
            group["params"] = [parameters[names[parameter]] for parameter in group["params"]]
        self.optimizer = accelerator.prepare_optimizer(optimizer)

    @contextmanager
    def without_sum(self) -> Iterator[None]:
        """While active, do not sum gradients over processes: for all parts of a batch but the last."""
        if self._shards is None:
            with self._accelerator.no_sync(self.model):
                yield
            return
        self.model.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self.model.set_requires_gradient_sync(True)

    def whole(self, model: nn.Module) -> AbstractContextManager[None]:
        """While active, parameters are whole, so that parts of a model can be used without a pass through it."""
        return nullcontext() if self._shards is None else unsharded(model)

    def add(self, model: nn.Module) -> nn.Module:
        """Distribute another model, with parameters like those of the first."""
        return model if self._shards is None else shard(model, **self._shards)

    def save(self, path: Path, state: State) -> None:
        """Write a checkpoint, whole or not at all, by process 0. All processes must call it, and raise its error."""
        if self._shards is not None:
            state = _gathered(state, keep=self._accelerator.is_main_process)
        by_first(self._accelerator, lambda: save_checkpoint(path, state, make_folder=False))

    def read(self, path: Path) -> State:
        """Read a checkpoint of any distribution. All processes must call it, and raise its error.

        Process 0 reads: the others need not see its file system, and never see an older file.
        """
        return by_first(self._accelerator, lambda: load_checkpoint(path))

    def whole_state_of(self, model: nn.Module) -> State:
        """Return the whole state of a model, in all processes. All processes must call it."""
        return model.state_dict() if self._shards is None else _gathered(model.state_dict())

    def load(self, model: nn.Module, state: State) -> None:
        """Load a whole state, of which each process takes its part."""
        if self._shards is not None:
            own = model.state_dict()
            state = {name: _shard_like(value, own.get(name)) for name, value in state.items()}
        model.load_state_dict(state)

    def load_optimizer(self, state: State) -> None:
        if self._shards is not None:
            parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
            parts = {
                number: {name: _shard_like(value, parameters[number]) for name, value in kept.items()}
                for number, kept in state["state"].items()
            }
            state = {**state, "state": parts}
        self.optimizer.load_state_dict(state)

    def end_evaluation(self, model: nn.Module) -> None:
        """Free the whole parameters that a pass without gradients leaves."""
        if self._shards is not None:
            reshard(model)


def _gathered(value: Any, *, keep: bool = True) -> Any:
    """A state with whole tensors on the CPU; a process that does not keep them takes part in gathering them."""
    from torch.distributed.tensor import DTensor

    if isinstance(value, dict):
        return {key: _gathered(part, keep=keep) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_gathered(part, keep=keep) for part in value)
    if not isinstance(value, Tensor):
        return value
    whole = value.full_tensor() if isinstance(value, DTensor) else value
    return whole.cpu() if keep else None


def _shard_like(values: Any, own: object) -> Any:
    """A whole tensor as this process holds its own: a part of it, or all; counts of steps are no such tensors."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(own, DTensor) or not isinstance(values, Tensor) or values.ndim == 0:
        return values
    if values.shape != own.shape:
        raise ValueError(f"a tensor has the shape {tuple(values.shape)}, but {tuple(own.shape)} is expected")
    # Every process has the whole tensor: nothing is sent.
    values = values.to(own.device_mesh.device_type)
    return distribute_tensor(values, own.device_mesh, own.placements, src_data_rank=None)


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


class WeightAverage:
    """Exponential moving average of the parameters and buffers of a model, updated every few steps.

    Until the warm-up is over, it is a copy of the weights at its last update. Integers, such as counters and codes, are
    copied; what only one of the two models has, such as the state of a rule that is not in force, is left alone. The
    model at the start is copied, so nothing may be wrapped around it yet.
    """

    def __init__(self, model: nn.Module, plan: TrainingPlan) -> None:
        assert plan.average_every is not None
        self._every, self._num_warmup_epochs = plan.average_every, plan.warmup_epochs
        self._share = 1.0 - rescaled_decay(plan)
        self.has_begun = False
        self.model = copy.deepcopy(model)

    @torch.no_grad()
    def observe(self, model: nn.Module, epoch: int, num_steps: int) -> None:
        """Take in the weights after step `num_steps` of an epoch, if it is time."""
        if (num_steps - 1) % self._every:
            return
        new = dict(_tensors(model))
        pairs = [(value, new[name]) for name, value in _tensors(self.model) if name in new]
        for average, value in pairs:
            if not self.has_begun or not average.is_floating_point():
                average.copy_(value)
        if self.has_begun:
            pairs = [pair for pair in pairs if pair[0].is_floating_point()]
            torch._foreach_lerp_([average for average, _ in pairs], [value for _, value in pairs], self._share)
        # The first update after the warm-up copies the weights.
        self.has_begun = epoch > self._num_warmup_epochs


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers; of a sharded parameter, the part of this process."""
    for name, parameter in model.named_parameters():
        yield name, local_part(parameter)
    yield from model.named_buffers()


def rescaled_decay(plan: TrainingPlan) -> float:
    """Return the share of the average that is kept at an update; larger for longer runs and smaller batches."""
    assert plan.average_every is not None
    return 1.0 - min(1.0, (1.0 - plan.average_decay) * plan.batch_size * plan.average_every / plan.max_epochs)


class EvaluatedModel:
    """Makes the model to evaluate from the one that trains.

    Must be made before the model is distributed: a wrapped forward, copied, would still call the original.
    """

    def __init__(self, task: Task, plan: TrainingPlan, accelerator: Accelerator) -> None:
        self._task, self._accelerator = task, accelerator
        device = accelerator.device
        self.average = None if plan.average_every is None else WeightAverage(task.model.to(device), plan)
        # A model for another grid is made from a whole one.
        needs_twin = task.for_evaluation is not None and (self.average is None or plan.sharding == "full")
        self._twin = copy.deepcopy(task.model).to(device) if needs_twin else None

    @property
    def weights(self) -> nn.Module:
        """The model whose weights are stored as the best: the average, or the one that trains."""
        return self._task.model if self.average is None else self.average.model

    def distribute(self, distribution: Distribution) -> None:
        if self.average is not None:
            self.average.model = distribution.add(self.average.model)

    def get(self, distribution: Distribution) -> nn.Module:
        """Return the model to evaluate. Every process must call this method."""
        weights = self.weights
        if self._accelerator.num_processes > 1:
            # The processes differ in buffers such as running means.
            for buffer in weights.buffers():
                torch.distributed.broadcast(buffer, src=0)
        if self._task.for_evaluation is None:
            return distribution.model if self.average is None else weights
        if self._twin is None:
            return self._task.for_evaluation(weights)
        self._twin.load_state_dict(distribution.whole_state_of(weights))
        return self._task.for_evaluation(self._twin)
