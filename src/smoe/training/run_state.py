"""How far a run is, and its checkpoints: the last state, with all that a resumed run needs, and the best weights.

They can be read whatever number of processes wrote them, and however these held the model.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from smoe.diagnostics import RoutingWatch
from smoe.nn._shared_parameters import local_part
from smoe.training.checkpoints import CheckpointError
from smoe.training.distribution import Distribution, by_first, gather_process_states, restore_process_state
from smoe.training.evaluation import CosineSchedule, EvaluatedModel
from smoe.training.plan import Stopping, TrainingPlan
from smoe.training.run_directory import Record, RunDirectory, RunError
from smoe.training.task import Task


@dataclass
class RunState:
    """How far a run is.

    Attributes:
        stopping: Best value so far, and the end of the run.
        loss_total: Sum of the losses of this process in the epoch so far, a scalar.
        epoch: Epoch that is trained or comes next, from 1.
        next_batch: Batch of this epoch that comes next.
        seconds: Time that was spent on this epoch.
        history: Records of the epochs that have ended, and of the end of the run.
        is_finished: Whether the run has ended.
    """

    stopping: Stopping
    loss_total: Tensor
    epoch: int = 1
    next_batch: int = 0
    seconds: float = 0.0
    history: list[Record] = field(default_factory=list)
    is_finished: bool = False

    def begin_next_epoch(self) -> None:
        """Starts the count of the next epoch."""
        self.epoch, self.next_batch, self.seconds = self.epoch + 1, 0, 0.0
        self.loss_total.zero_()

    def __str__(self) -> str:
        if self.next_batch == 0:
            return f"the state before epoch {self.epoch}"
        return f"the state after batch {self.next_batch} of epoch {self.epoch}"


class RunCheckpoints:
    """Stores and restores a run.

    Args:
        run: Directory of the run.
        accelerator: Accelerator of the run.
        task: Task that is trained.
        distribution: Model and optimiser.
        evaluated: Model whose weights are the best ones.
        schedule: Schedule of the learning rate.
        watch: Watch of the routing.
    """

    def __init__(
        self,
        run: RunDirectory,
        accelerator: Accelerator,
        task: Task,
        distribution: Distribution,
        evaluated: EvaluatedModel,
        schedule: ReduceLROnPlateau | CosineSchedule,
        watch: RoutingWatch,
    ) -> None:
        self._run, self._accelerator, self._task = run, accelerator, task
        self._distribution, self._evaluated = distribution, evaluated
        self._schedule, self._watch = schedule, watch
        self.stored = "no state yet"

    def exist(self) -> bool:
        """Whether there is a state to continue from. All processes must call this method."""
        return by_first(self._accelerator, self._run.last_checkpoint.exists)

    def save_last(self, state: RunState) -> None:
        """Stores all that a resumed run needs. All processes must call this method."""
        scaler, average = self._accelerator.scaler, self._evaluated.average
        averaged = None
        if average is not None:
            averaged = {"model": average.model.state_dict(), "has_begun": average.has_begun}
        self._distribution.save(
            self._run.last_checkpoint,
            {
                "model": self._task.model.state_dict(),
                "optimizer": self._distribution.optimizer.state_dict(),
                "scheduler": self._schedule.state_dict(),
                "average": averaged,
                "scaler": None if scaler is None else scaler.state_dict(),
                "stopping": {"best": state.stopping.best, "best_epoch": state.stopping.best_epoch},
                "routing": self._watch.state_dict(),
                "epoch": state.epoch,
                "next_batch": state.next_batch,
                "seconds": state.seconds,
                "history": state.history,
                "is_finished": state.is_finished,
                "processes": gather_process_states(self._accelerator, state.loss_total),
            },
        )
        if self._accelerator.is_main_process:
            self._run.write_history(state.history)
        self.stored = str(state)

    def restore_last(self, state: RunState, plan: TrainingPlan) -> None:
        """Continues from the stored state. All processes must call this method.

        Args:
            state: Becomes that of the stored run.
            plan: Plan of the run, which may have more epochs than the run that was stored.

        Raises:
            CheckpointError: If the checkpoint cannot be read, or is of another run.
            RunError: If the run has more epochs than the plan.
        """
        stored, accelerator = self._distribution.read(self._run.last_checkpoint), self._accelerator
        average = self._evaluated.average
        try:
            self._distribution.load(self._task.model, stored["model"])
            self._distribution.load_optimizer(stored["optimizer"])
            self._schedule.load_state_dict(stored["scheduler"])
            if average is not None:
                self._distribution.load(average.model, stored["average"]["model"])
                average.has_begun = stored["average"]["has_begun"]
            if accelerator.scaler is not None and stored["scaler"] is not None:
                accelerator.scaler.load_state_dict(stored["scaler"])
            state.stopping = Stopping(plan, **stored["stopping"])
            self._watch.load_state_dict(stored["routing"])
            for name in ("epoch", "next_batch", "seconds", "history", "is_finished"):
                setattr(state, name, stored[name])
            seed = self._task.seed + accelerator.process_index + 1_000_003 * state.epoch
            state.loss_total.fill_(restore_process_state(accelerator, stored["processes"], seed))
        except (KeyError, IndexError, RuntimeError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(
                f"checkpoint {self._run.last_checkpoint} is of another run or version: {error!r}"
            ) from error
        self.stored = str(state)
        if accelerator.is_main_process:
            # A process that was killed after it stored the state has not written the last record.
            self._run.write_history(state.history)
        if state.is_finished:
            if state.stopping.reason(state.epoch - 1) is not None:
                return
            # The plan has more epochs now: the last record, with the test metrics, is made again at the new end.
            state.history, state.is_finished = state.history[:-1], False
        elif state.epoch > plan.max_epochs:
            raise RunError(
                f"{self._run.path} has {state.epoch - 1} epochs already, but max_epochs is {plan.max_epochs}; give "
                "at least one more"
            )

    def save_best(self, epoch: int, record: Record) -> None:
        """Stores the weights as the best so far. All processes must call this method."""
        weights = self._evaluated.weights.state_dict()
        self._distribution.save(self._run.best_checkpoint, {"model": weights, "epoch": epoch, "record": record})

    def load_best(self) -> None:
        """Gives all processes the best weights; with an average, the weights that train stay as they are."""
        stored = self._distribution.read(self._run.best_checkpoint)
        try:
            self._distribution.load(self._evaluated.weights, stored["model"])
        except (KeyError, RuntimeError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"checkpoint {self._run.best_checkpoint} is of another run: {error}") from error


class FiniteState:
    """Finds values that training has made infinite or NaN.

    Args:
        model: Model at the start. A parameter or buffer that is not finite then, such as a mask, is not looked at.
    """

    def __init__(self, model: nn.Module) -> None:
        self._names = {name for name, value in model.state_dict().items() if _all_finite([value])}

    def is_kept(self, models: Iterable[nn.Module], optimizer: torch.optim.Optimizer) -> bool:
        """Whether everything that was finite at the start, and the state of the optimiser, is finite.

        Args:
            models: The model that trains, and the average of its weights if there is one.
            optimizer: Its optimiser.
        """
        states = [model.state_dict() for model in models]
        kept = [value for state in states for name, value in state.items() if name in self._names]
        moments: Iterable[dict[str, Any]] = optimizer.state.values()
        kept += [value for state in moments for value in state.values() if isinstance(value, Tensor)]
        return _all_finite(kept)


def _all_finite(values: list[Tensor]) -> bool:
    numbers = [local_part(value.detach()) for value in values if value.is_floating_point() or value.is_complex()]
    # One value is read on the host, and not one for each tensor.
    flags = [value.isfinite().all() for value in numbers]
    return not flags or bool(torch.stack([flag.to(flags[0].device) for flag in flags]).all())
