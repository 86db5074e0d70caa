"""The checkpoints of a run: its last state, and its best weights.

They are one file each, or a file and the parts of the processes that held the model in shards. Either can be read
whatever number of processes wrote it, and however these held the model.
"""

from __future__ import annotations

from accelerate import Accelerator

from smoe.diagnostics import RoutingWatch
from smoe.training.checkpoints import CheckpointError
from smoe.training.distribution import Distribution
from smoe.training.evaluated_model import EvaluatedModel
from smoe.training.first_process import by_first
from smoe.training.plan import Stopping, TrainingPlan
from smoe.training.process_states import gather_process_states, restore_process_state
from smoe.training.run_directory import Record, RunDirectory, RunError
from smoe.training.run_state import RunState
from smoe.training.schedule import Schedule
from smoe.training.task import Task


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
        schedule: Schedule,
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
            averaged = {"model": self._distribution.state_of(average.model), "has_begun": average.has_begun}
        self._distribution.save(
            self._run.last_checkpoint,
            {
                "model": self._distribution.state_of(self._task.model),
                "optimizer": self._distribution.optimizer_state(),
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
        weights = self._distribution.state_of(self._evaluated.weights)
        self._distribution.save(self._run.best_checkpoint, {"model": weights, "epoch": epoch, "record": record})

    def load_best(self) -> None:
        """Gives all processes the best weights; with an average, the weights that train stay as they are."""
        stored = self._distribution.read(self._run.best_checkpoint)
        try:
            self._distribution.load(self._evaluated.weights, stored["model"])
        except (KeyError, RuntimeError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"checkpoint {self._run.best_checkpoint} is of another run: {error}") from error
