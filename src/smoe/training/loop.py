"""The training loop: train an epoch, evaluate, store the state and the best weights, stop early."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from smoe.diagnostics import RoutingGain, RoutingWatch, routing_gains
from smoe.errors import Interrupted, Interruption, SmoeError
from smoe.nn._routed_layer import RoutedLayer
from smoe.nn._score_learners import track_loss_scale
from smoe.training.plan import LOSS, Stopping, TrainingPlan, check_monitor
from smoe.training.progress import Reporter
from smoe.training.run_directory import (
    CheckpointError,
    Record,
    RunDirectory,
    RunError,
    State,
    load_checkpoint,
    save_checkpoint,
)
from smoe.training.task import (
    MeanLoss,
    ShuffledBatches,
    Task,
    evaluate,
    from_main_process,
    gather_process_states,
    load_batches,
    make_accelerator,
    metric_names,
    restore_process_state,
    sum_over_processes,
)

# Reading the loss waits for the accelerator, and several processes agree on a stop by a reduction: both are done now
# and then only.
_STEPS_PER_CHECK = 25
# Largest number of validation samples of a process with which the layers are compared with convolutions.
_MOST_SAMPLES = 32


class TrainingDiverged(SmoeError):
    """The loss or the weights are no longer finite."""

    def __init__(self, what: str, kept: str = "") -> None:
        remedy = "begin another run with a lower learning rate, or look for values that are not finite in the data"
        super().__init__("; ".join(part for part in (what, kept, remedy) if part))
        self.what = what


@dataclass
class RunState:
    stopping: Stopping  # best value so far, and the end of the run
    loss_total: Tensor  # sum of the losses of this process in the epoch so far, a scalar
    epoch: int = 1  # epoch that is trained or comes next, from 1
    next_batch: int = 0  # batch of this epoch that comes next
    seconds: float = 0.0  # time that was spent on this epoch
    history: list[Record] = field(default_factory=list)  # records of the epochs that have ended
    is_finished: bool = False  # whether the run has ended

    def __str__(self) -> str:
        if self.next_batch == 0:
            return f"the state before epoch {self.epoch}"
        return f"the state after batch {self.next_batch} of epoch {self.epoch}"


class Loop:
    """Trains a task by a plan and stores the record in a run directory."""

    # A signal that asked for a stop after the last step, when nothing was left to stop.
    signal_number: int | None = None

    def __init__(self, task: Task, plan: TrainingPlan, run: RunDirectory, reporter: Reporter | None = None) -> None:
        check_monitor(plan, metric_names(task.metrics))
        self.task, self.plan, self.run = task, plan, run
        needs_loss = plan.monitor == LOSS and LOSS not in metric_names(task.metrics)
        self.metrics = [*task.metrics, MeanLoss(task.loss)] if needs_loss else list(task.metrics)
        self.accelerator = make_accelerator(plan)
        self.model, self.optimizer = self.accelerator.prepare(task.model, task.optimizer)
        self.watch = RoutingWatch(task.model, task.regions)
        # accelerate's own step looks for a package on the disk each time, and its zero_grad at a signature, which takes
        # a small model as long as its forward pass. Only a loss scaler, or an XLA device, needs what it does besides.
        is_plain = self.accelerator.scaler is None and self.accelerator.device.type in ("cpu", "cuda")
        self.stepper = task.optimizer if is_plain else self.optimizer
        is_main = self.accelerator.is_main_process
        self.reporter = reporter if reporter is not None and is_main else Reporter()
        self.schedule = make_schedule(task.optimizer, plan)
        # What is not finite at the start, such as a mask, is not looked at later.
        self.finite_names = {name for name, value in task.model.state_dict().items() if _all_finite([value])}
        loss_total = torch.zeros((), dtype=torch.float64, device=self.accelerator.device)
        self.state, self.stored = RunState(Stopping(plan), loss_total), "no state yet"
        process, num_processes = self.accelerator.process_index, self.accelerator.num_processes
        self.batches = ShuffledBatches(len(task.splits["train"]), plan.batch_size, task.seed, process, num_processes)
        if process:
            # The processes hold the same weights, but draw noise of their own.
            torch.manual_seed(task.seed + process)

    def begin(self, recipe: Mapping[str, Any]) -> None:
        """Stores the recipe in the run directory, once all processes are here."""
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            self.run.begin(recipe)

    def fit(self, *, resume: bool = False) -> Record:
        """Trains to the end of the plan and returns the last record, with the metrics of a test split if there is one.

        The model has the best weights afterwards. With `resume`, the run goes on from its last checkpoint, if there is
        one. The result equals that of a run that was not stopped if the number of processes is the same; see
        `restore_process_state` for another number. A run that has ended continues if the plan has more epochs now.

        Raises:
            Interrupted: After a SIGINT, SIGTERM or SIGHUP. The state was stored.
            TrainingDiverged: If the loss or the weights are not finite. The last state that was finite stays stored.
            RunError: If the run directory is in use or cannot be written, or another process is lost.
            CheckpointError: If a checkpoint cannot be read or written.
        """
        with self.run.lock(), self._named_lost_processes():
            if self.accelerator.is_main_process:
                self.run.make_folders()
            if resume and from_main_process(self.accelerator, self.run.last_checkpoint.exists):
                self._restore()
            else:
                self._save()
            with Interruption() as interruption:
                while not self.state.is_finished:
                    self._train_epoch(interruption)
                    self._end_epoch()
            self.signal_number = interruption.signal_number
            self._load_best()
        return self.state.history[-1]

    def evaluate(self, split: str) -> dict[str, float]:
        """Returns the metrics of the model on a split, named `split/metric`."""
        self._share_buffers()
        values = evaluate(self.accelerator, self.model, self.task, split, self.plan, self.metrics)
        return {f"{split}/{name}": value for name, value in values.items()}

    def _share_buffers(self) -> None:
        """Gives all processes the buffers of the first, such as running means. Every process must call this method."""
        for buffer in self.task.model.buffers() if self.accelerator.num_processes > 1 else ():
            torch.distributed.broadcast(buffer, src=0)

    def _train_epoch(self, interruption: Interruption) -> None:
        task, state, batches = self.task, self.state, self.batches
        batches.start(state.epoch, state.next_batch)
        self.reporter.begin_epoch(state.epoch, batches.num_batches, state.next_batch)
        started = time.perf_counter()
        self.model.train()
        samples: Any = task.splits["train"]
        if hasattr(samples, "start_epoch"):
            samples.start_epoch(state.epoch)
        device, num_workers, ahead = self.accelerator.device, self.plan.num_workers, task.reads_ahead
        for input, target in load_batches(samples, batches, task.collate, device, num_workers, reads_ahead=ahead):
            loss = task.loss(self.model(input), target)
            if task.auxiliary_loss is not None:
                loss = loss + task.auxiliary_loss(self.model)
            if self.accelerator.scaler is not None:
                loss = track_loss_scale(loss, self.model)
            self.accelerator.backward(loss)
            state.loss_total += loss.detach()
            if isinstance(self.schedule, CosineSchedule):
                self.schedule.advance(state.epoch - 1 + state.next_batch / self.batches.num_batches)
            self.stepper.step()
            self.stepper.zero_grad()
            state.next_batch += 1
            if self._is_interrupted(interruption):
                state.seconds += time.perf_counter() - started
                self._check_finite()
                self._save()
                raise Interrupted(interruption.signal_number or 15)
        state.seconds += time.perf_counter() - started

    def _is_interrupted(self, interruption: Interruption) -> bool:
        """Reports the step, checks the loss now and then, and returns whether to stop after this step."""
        state, is_alone = self.state, self.accelerator.num_processes == 1
        if state.next_batch % _STEPS_PER_CHECK and state.next_batch < self.batches.num_batches:
            self.reporter.step(None)
            # Several processes receive the signal at different steps; all must stop at the same one.
            return is_alone and interruption.signal_number is not None
        loss, num_interrupted = self._sums(interruption.signal_number is not None)
        self._check_loss(loss)
        self.reporter.step(loss / self.accelerator.num_processes / state.next_batch)
        return interruption.signal_number is not None if is_alone else num_interrupted > 0

    def _sums(self, flag: bool) -> tuple[float, float]:
        """The loss of the epoch so far and the number of processes with the flag, over all processes."""
        both = torch.stack([self.state.loss_total, self.state.loss_total.new_tensor(float(flag))])
        loss, count = sum_over_processes(self.accelerator, both).tolist()
        return loss, count

    def _check_loss(self, loss: float) -> None:
        if not math.isfinite(loss):
            self._diverge(f"the loss became {loss} in epoch {self.state.epoch}, by batch {self.state.next_batch}")

    def _check_finite(self) -> None:
        """Ends the run if the loss or the state is not finite, in all processes."""
        values = [value for name, value in self.task.model.state_dict().items() if name in self.finite_names]
        moments: Iterable[dict[str, Any]] = self.task.optimizer.state.values()
        values += [value for moment in moments for value in moment.values() if isinstance(value, Tensor)]
        loss, num_lost = self._sums(not _all_finite(values))
        self._check_loss(loss)
        if num_lost:
            self._diverge(f"the weights are not finite after batch {self.state.next_batch} of epoch {self.state.epoch}")

    def _diverge(self, what: str) -> None:
        raise TrainingDiverged(what, f"{self.run.last_checkpoint} holds {self.stored}")

    def _end_epoch(self) -> None:
        state, started = self.state, time.perf_counter()
        self._check_finite()
        validation = self.evaluate("validation")
        monitored = validation[f"validation/{self.plan.monitor}"]
        learning_rate = self.optimizer.param_groups[0]["lr"]
        if not isinstance(self.schedule, CosineSchedule):
            self.schedule.step(monitored)
        is_best = state.stopping.observe(state.epoch, monitored)
        summed_loss = sum_over_processes(self.accelerator, state.loss_total)
        mean_loss = float(summed_loss) / (self.accelerator.num_processes * self.batches.num_batches)
        routing = self.watch.observe(self.task.model)
        layers = [module for module in self.model.modules() if isinstance(module, RoutedLayer)]
        state.seconds += time.perf_counter() - started
        record: Record = {
            "epoch": state.epoch,
            "train/loss": mean_loss,
            **validation,
            **routing,
            "learning_rate": learning_rate,
            "nonfinite_errors": sum(int(layer._signal.num_nonfinite) for layer in layers),
            "seconds": round(state.seconds, 3),
        }
        state.history.append(self._with_warnings(record))
        self.reporter.end_epoch(record, is_best=is_best)
        if is_best:
            best = {"model": self.task.model.state_dict(), "epoch": state.epoch, "record": record}
            self._write(self.run.best_checkpoint, best)
        reason = state.stopping.reason(state.epoch)
        if reason is not None:
            self._finish(reason)
        state.epoch, state.next_batch, state.seconds = state.epoch + 1, 0, 0.0
        state.loss_total.zero_()
        self._save()

    def _with_warnings(self, record: Record) -> Record:
        warnings = self.watch.new_warnings()
        for text in warnings:
            self.reporter.notify(f"warning: {text}")
        return {**record, "warnings": warnings} if warnings else record

    def _routing_gains(self, model: nn.Module) -> list[RoutingGain]:
        """What the routing of each layer is worth on the validation split, over all processes; all must call it."""
        task, num_processes, process = self.task, self.accelerator.num_processes, self.accelerator.process_index
        samples = task.splits["validation"]
        if not task.compares_routing:
            return []
        # At most a training batch of a process, which fits in memory; the same number for each process.
        num_taken = min(_MOST_SAMPLES, self.plan.batch_size // num_processes, len(samples) // num_processes)
        if num_taken == 0:
            return []
        spread = torch.linspace(0, len(samples) - 1, num_taken * num_processes).long().tolist()
        chosen = spread[process::num_processes]
        ((input, target),) = load_batches(samples, [chosen], task.collate, self.accelerator.device)
        with self.accelerator.autocast():
            return routing_gains(model, task.loss, input, target, gather=gather_object)

    def _finish(self, reason: str) -> None:
        """Compares the best weights with convolutions, and evaluates them on a test split: the last record."""
        state, weights = self.state, self.task.model
        trained = {name: value.clone() for name, value in weights.state_dict().items()}
        self._load_best()
        self._share_buffers()
        # Not the wrapped model: DistributedDataParallel expects a whole backward pass after each pass with gradients.
        gains = self._routing_gains(weights)
        test = self.evaluate("test") if "test" in self.task.splits else {}
        # The last checkpoint holds the last weights, so that the run can be extended.
        weights.load_state_dict(trained)
        self.watch.finish(gains)
        record = {
            "epoch": state.epoch,
            "best_epoch": state.stopping.best_epoch,
            **test,
            **({"routing_gains": [gain.as_record() for gain in gains]} if gains else {}),
            "stopped": reason,
            "total_seconds": round(sum(record["seconds"] for record in state.history), 3),
        }
        state.history.append(self._with_warnings(record))
        state.is_finished = True
        self.reporter.notify(f"stopped after epoch {state.epoch}: {reason}")

    def _write(self, path: Path, state: State) -> None:
        """Writes a checkpoint, whole or not at all, by process 0; all processes raise its error."""
        from_main_process(self.accelerator, lambda: save_checkpoint(path, state, make_folder=False))

    def _read(self, path: Path) -> State:
        """Reads a checkpoint by process 0: the others need not see its file system, and never see an older file."""
        return from_main_process(self.accelerator, lambda: load_checkpoint(path))

    def _save(self) -> None:
        state, scaler = self.state, self.accelerator.scaler
        self._write(
            self.run.last_checkpoint,
            {
                "model": self.task.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scheduler": None if isinstance(self.schedule, CosineSchedule) else self.schedule.state_dict(),
                "scaler": None if scaler is None else scaler.state_dict(),
                "stopping": {"best": state.stopping.best, "best_epoch": state.stopping.best_epoch},
                "routing": self.watch.state_dict(),
                "epoch": state.epoch,
                "next_batch": state.next_batch,
                "seconds": state.seconds,
                "history": state.history,
                "is_finished": state.is_finished,
                "processes": gather_process_states(self.accelerator, state.loss_total),
            },
        )
        if self.accelerator.is_main_process:
            self.run.write_history(state.history)
        self.stored = str(state)

    def _restore(self) -> None:
        """Continues from the stored state, by a plan that may have more epochs than the run had."""
        state, plan, scaler = self.state, self.plan, self.accelerator.scaler
        stored = self._read(self.run.last_checkpoint)
        with self._of_this_run(self.run.last_checkpoint):
            self.task.model.load_state_dict(stored["model"])
            self.optimizer.load_state_dict(stored["optimizer"])
            if not isinstance(self.schedule, CosineSchedule):
                self.schedule.load_state_dict(stored["scheduler"])
            if scaler is not None and stored["scaler"] is not None:
                scaler.load_state_dict(stored["scaler"])
            state.stopping = Stopping(plan, **stored["stopping"])
            self.watch.load_state_dict(stored["routing"])
            for name in ("epoch", "next_batch", "seconds", "history", "is_finished"):
                setattr(state, name, stored[name])
            seed = self.task.seed + self.accelerator.process_index + 1_000_003 * state.epoch
            state.loss_total.fill_(restore_process_state(self.accelerator, stored["processes"], seed))
        self.stored = str(state)
        if self.accelerator.is_main_process:
            # A process that was killed after it stored the state has not written the last record.
            self.run.write_history(state.history)
        if state.is_finished:
            if state.stopping.reason(state.epoch - 1) is None:
                # The plan has more epochs now: the last record, with the test metrics, is made again at the new end.
                state.history, state.is_finished = state.history[:-1], False
        elif state.epoch > plan.max_epochs:
            raise RunError(
                f"{self.run.path} has {state.epoch - 1} epochs already, but max_epochs is {plan.max_epochs}; give "
                "at least one more"
            )

    def _load_best(self) -> None:
        """Gives all processes the best weights; without an epoch that had a finite value, the weights stay."""
        if self.state.stopping.best is not None:
            stored = self._read(self.run.best_checkpoint)
            with self._of_this_run(self.run.best_checkpoint):
                self.task.model.load_state_dict(stored["model"])

    @contextmanager
    def _of_this_run(self, path: Path) -> Iterator[None]:
        try:
            yield
        except (KeyError, IndexError, RuntimeError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"checkpoint {path} is of another run or version: {error!r}") from error

    @contextmanager
    def _named_lost_processes(self) -> Iterator[None]:
        """Reports the loss of a process that reads data, or of another one that trains, in one line."""
        try:
            yield
        except RuntimeError as error:
            # torch has no class for the error of a reader, nor gloo for a closed connection.
            text = str(error)
            if "DataLoader worker" in text:
                what = f"a process that reads data was killed from outside, perhaps for its memory ({error})"
                remedy = "resume the run, or set fewer num_workers"
            elif self.accelerator.num_processes > 1 and (
                isinstance(error, torch.distributed.DistError) or "gloo" in text.lower()
            ):
                reason = text.partition(". ")[0]
                what = f"process {self.accelerator.process_index} has lost the connection to another one ({reason})"
                remedy = "look at the messages of the process that ended first, and resume the run"
            else:
                raise
            raise RunError(f"{what}; {self.run.last_checkpoint} holds {self.stored}; {remedy}") from error


def _all_finite(values: list[Tensor]) -> bool:
    numbers = [value.detach() for value in values if value.is_floating_point() or value.is_complex()]
    # One value is read on the host, and not one for each tensor.
    flags = [value.isfinite().all() for value in numbers]
    return not flags or bool(torch.stack([flag.to(flags[0].device) for flag in flags]).all())


def make_schedule(optimizer: torch.optim.Optimizer, plan: TrainingPlan) -> ReduceLROnPlateau | CosineSchedule:
    """The schedule of a plan: a cosine advances before each step, the other by `step(monitored)` of an epoch."""
    if plan.schedule == "cosine":
        return CosineSchedule(optimizer, plan)
    # Without a margin in the plan, torch's own: a hundredth of a percent.
    margin: dict[str, Any] = {"threshold": plan.min_delta, "threshold_mode": "abs"} if plan.min_delta > 0.0 else {}
    return ReduceLROnPlateau(
        optimizer, plan.monitor_mode, plan.plateau_factor, plan.plateau_patience, min_lr=plan.min_lr, **margin
    )


class CosineSchedule:
    """Linear warm-up, then half a cosine wave, step by step. The rate depends on the place in the training only.

    (torch's schedules compute the rate from that of the step before, and warn about a run that is resumed.)
    """

    def __init__(self, optimizer: torch.optim.Optimizer, plan: TrainingPlan) -> None:
        self._optimizer, self._plan = optimizer, plan
        self._peaks = [group["lr"] for group in optimizer.param_groups]

    def advance(self, num_epochs: float) -> None:
        """Sets the rates of the next step, this many epochs after the start."""
        plan = self._plan
        if num_epochs < plan.warmup_epochs:
            lowest, share = 0.0, plan.warmup_start + (1.0 - plan.warmup_start) * num_epochs / plan.warmup_epochs
        else:
            done = (num_epochs - plan.warmup_epochs) / (plan.max_epochs - plan.warmup_epochs)
            lowest, share = plan.min_lr, (1.0 + math.cos(math.pi * done)) / 2.0
        for group, peak in zip(self._optimizer.param_groups, self._peaks, strict=True):
            group["lr"] = lowest + (peak - lowest) * share
