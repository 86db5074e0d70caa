"""The training loop: trains an epoch, evaluates, keeps the best weights, and stops when nothing is left to gain."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from smoe.diagnostics import RoutingWatch
from smoe.metrics import MeanLoss, metric_names
from smoe.nn.loss_scale import track_loss_scale
from smoe.nn.routed_layer import RoutedLayer
from smoe.training.batches import DrawnSamples, ShuffledBatches, load_batches, num_samples
from smoe.training.checkpoints import CheckpointError, load_checkpoint, save_checkpoint
from smoe.training.devices import make_accelerator
from smoe.training.evaluated_model import EvaluatedModel, broadcast_state
from smoe.training.evaluation import evaluate, sum_over_processes
from smoe.training.finite_state import FiniteState
from smoe.training.interruption import Interrupted, Interruption
from smoe.training.lost_process import name_lost_processes
from smoe.training.monitor import LOSS, check_monitor
from smoe.training.plan import Stopping, TrainingPlan
from smoe.training.process_states import gather_process_states, restore_process_state
from smoe.training.progress import Reporter, SilentReporter
from smoe.training.routing_record import routing_record
from smoe.training.run_directory import Record, RunDirectory, RunError
from smoe.training.schedule import make_schedule
from smoe.training.task import Task

# Reading the loss waits for the accelerator, and several processes agree on a stop by a reduction: both are done now
# and then only.
_STEPS_PER_CHECK = 25

Batch = tuple[Tensor, Tensor]


class TrainingDiverged(Exception):
    """The loss or the weights are no longer finite."""


class Loop:
    """Trains a task by a plan and stores the record in a run directory.

    Args:
        task: What is trained on what.
        plan: Batches, schedule and stopping.
        run: Directory of the run.
        reporter: Logs progress; None logs nothing.

    Raises:
        MonitorError: If the plan monitors a metric that the task does not have.
    """

    def __init__(self, task: Task, plan: TrainingPlan, run: RunDirectory, reporter: Reporter | None = None) -> None:
        check_monitor(plan, metric_names(task.metrics))
        self.task, self.plan, self.run = task, plan, run
        needs_loss = plan.monitor == LOSS and LOSS not in metric_names(task.metrics)
        self.metrics = [*task.metrics, MeanLoss(task.loss)] if needs_loss else list(task.metrics)
        self.accelerator = make_accelerator(plan)
        device = self.accelerator.device
        self.evaluated = EvaluatedModel(task, plan, self.accelerator)
        self.average = self.evaluated.average
        self.model, self.optimizer = self.accelerator.prepare(task.model, task.optimizer)
        # accelerate's own step looks for a package on the disk each time, and its zero_grad at a signature, which takes
        # a small model as long as its forward pass. Only a loss scaler, or an XLA device, needs what it does besides.
        is_plain = self.accelerator.scaler is None and self.accelerator.device.type in ("cpu", "cuda")
        self.stepper = task.optimizer if is_plain else self.optimizer
        is_main = self.accelerator.is_main_process
        self.reporter = reporter if reporter is not None and is_main else SilentReporter()
        self.schedule = make_schedule(task.optimizer, plan)
        self.stopping = Stopping(plan)
        self.watch = RoutingWatch(task.model, task.regions)
        self.finite_state = FiniteState(task.model)
        self.history: list[Record] = []
        self.epoch = 1
        self.next_batch = 0
        self.loss_total = torch.zeros((), dtype=torch.float64, device=device)
        self.seconds = 0.0
        self.is_finished = False
        self._stored = "no state yet"
        process, num_processes = self.accelerator.process_index, self.accelerator.num_processes
        self.batches = ShuffledBatches(
            num_samples(task.splits["train"]),
            plan.batch_size,
            task.seed,
            process,
            num_processes,
            part_size=plan.part_size,
            num_repetitions=task.num_repetitions,
        )
        if process:
            # The processes hold the same weights, but draw noise of their own.
            torch.manual_seed(task.seed + process)

    def begin(self, recipe: Mapping[str, Any]) -> None:
        """Stores the recipe in the run directory, once all processes are here."""
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            self.run.begin(recipe)

    def fit(self, *, resume: bool = False) -> Record:
        """Trains to the end of the plan and returns the last record, with the test metrics.

        The model has the best weights afterwards.

        Args:
            resume: Continue from the last checkpoint, if there is one. The result equals that of a run that was not
                stopped if the number of processes is the same; see `restore_process_state` for another number. A run
                that has ended continues if the plan has more epochs now.

        Raises:
            Interrupted: After a SIGINT or SIGTERM. The state was stored.
            TrainingDiverged: If the loss or the weights are not finite. The last state that was finite stays stored.
            RunError: If another process trains in the run directory, or it cannot be written.
            CheckpointError: If a checkpoint cannot be read or written.
            LostProcessError: If another process of the training has ended.
        """
        with name_lost_processes(self.accelerator, self.run, lambda: self._stored), self.run.lock():
            if self.accelerator.is_main_process:
                self.run.make_folders()
            has_checkpoint = resume and self.run.last_checkpoint.exists()
            # All processes must have looked before one of them writes.
            self.accelerator.wait_for_everyone()
            if has_checkpoint:
                self._restore(load_checkpoint(self.run.last_checkpoint))
            else:
                self._save_last()
            with Interruption() as interruption:
                while not self.is_finished:
                    self._end_epoch(self._train_epoch(interruption))
            self._load_best()
        return self.history[-1]

    def evaluate(self, split: str) -> dict[str, float]:
        """Returns the metrics of the model, or of the average of its weights, on a split, named `split/metric`."""
        task, model = self.task, self.evaluated.get(self.model)
        # What accelerate has wrapped casts by itself.
        precision = nullcontext() if model is self.model else self.accelerator.autocast()
        with precision:
            values = evaluate(
                self.accelerator,
                model,
                task.splits[split],
                self.metrics,
                task.collate,
                self.plan.evaluation_batch_size,
                self.plan.num_workers,
            )
        return {f"{split}/{name}": value for name, value in values.items()}

    def _train_epoch(self, interruption: Interruption) -> Batch | None:
        """Trains the rest of the epoch; returns its last batch, or None if there was none left."""
        self.batches.start(self.epoch, self.next_batch)
        self.reporter.begin_epoch(self.epoch, self.batches.num_batches, self.next_batch)
        started = time.perf_counter()
        self.model.train()
        if self.task.begin_epoch is not None:
            self.task.begin_epoch(self.epoch)
        samples = self.task.splits["train"]
        if isinstance(samples, DrawnSamples):
            samples.start_epoch(self.epoch)
        device, num_workers = self.accelerator.device, self.plan.num_workers
        num_parts, num_done = self.batches.num_parts, 0
        batch: Batch | None = None
        ahead = self.task.reads_ahead
        for batch in load_batches(samples, self.batches, self.task.collate, device, num_workers, reads_ahead=ahead):
            input, target = batch
            num_done += 1
            is_whole = num_done % num_parts == 0
            # The processes add up their gradients once for each batch.
            with nullcontext() if is_whole else self.accelerator.no_sync(self.model):
                loss = self.task.loss(self.model(input), target)
                if self.task.auxiliary_loss is not None:
                    loss = loss + self.task.auxiliary_loss(self.model)
                loss = track_loss_scale(loss, self.model)
                self.accelerator.backward(loss if num_parts == 1 else loss / num_parts)
            self.loss_total += loss.detach() / num_parts
            if not is_whole:
                continue
            self.stepper.step()
            self.stepper.zero_grad()
            self.next_batch += 1
            if self.average is not None:
                self.average.observe(self.task.model, self.epoch, self.next_batch)
            if self._is_interrupted(interruption):
                self.seconds += time.perf_counter() - started
                self._check_finite()
                self._save_last()
                raise Interrupted(interruption.signal_number or 15)
        self.seconds += time.perf_counter() - started
        return batch

    def _is_interrupted(self, interruption: Interruption) -> bool:
        """Reports the step, checks the loss now and then, and returns whether to stop after this step."""
        is_alone = self.accelerator.num_processes == 1
        if self.next_batch % _STEPS_PER_CHECK and self.next_batch < self.batches.num_batches:
            self.reporter.step(None)
            # Several processes receive the signal at different steps; all must stop at the same one.
            return is_alone and interruption.signal_number is not None
        flag = self.loss_total.new_tensor(float(interruption.signal_number is not None))
        loss, num_interrupted = sum_over_processes(self.accelerator, torch.stack([self.loss_total, flag])).tolist()
        self._check_loss(loss)
        self.reporter.step(loss / self.accelerator.num_processes / self.next_batch)
        return interruption.signal_number is not None if is_alone else num_interrupted > 0

    def _check_loss(self, loss: float) -> None:
        if not math.isfinite(loss):
            self._diverge(f"the loss became {loss} in epoch {self.epoch}, by batch {self.next_batch}")

    def _check_finite(self) -> None:
        """Ends the run if the loss or the state is not finite, in all processes."""
        is_kept = self.finite_state.is_kept(self.task.model, self.task.optimizer)
        state = torch.stack([self.loss_total, self.loss_total.new_tensor(float(not is_kept))])
        loss, num_lost = sum_over_processes(self.accelerator, state).tolist()
        self._check_loss(loss)
        if num_lost:
            self._diverge(f"the weights are not finite after batch {self.next_batch} of epoch {self.epoch}")

    def _diverge(self, what: str) -> None:
        raise TrainingDiverged(
            f"{what}; {self.run.last_checkpoint} holds {self._stored}; lower the learning rate, or look for values "
            "that are not finite in the data"
        )

    def _end_epoch(self, batch: Batch | None) -> None:
        started = time.perf_counter()
        self._check_finite()
        validation = self.evaluate("validation")
        monitored = validation[f"validation/{self.plan.monitor}"]
        learning_rate = self.optimizer.param_groups[0]["lr"]
        self.schedule.step(monitored)
        is_best = self.stopping.observe(self.epoch, monitored)
        summed_loss = sum_over_processes(self.accelerator, self.loss_total)
        mean_loss = float(summed_loss) / (self.accelerator.num_processes * self.batches.num_batches)
        if batch is None:
            # The run was stopped after the last batch of the epoch.
            self.batches.start(self.epoch, self.batches.num_batches - 1)
            samples = self.task.splits["train"]
            *_, batch = load_batches(samples, self.batches, self.task.collate, self.accelerator.device)
        routing = routing_record(self.watch, self.task, self.accelerator, batch)
        self.seconds += time.perf_counter() - started
        record: Record = {
            "epoch": self.epoch,
            "train/loss": mean_loss,
            **validation,
            **routing,
            "learning_rate": learning_rate,
            "nonfinite_errors": self._count_nonfinite_errors(),
            "seconds": round(self.seconds, 3),
        }
        self.history.append(self._with_warnings(record))
        self.reporter.end_epoch(record, is_best=is_best)
        if is_best:
            weights = self.evaluated.weights.state_dict()
            self._save(self.run.best_checkpoint, {"model": weights, "epoch": self.epoch, "record": record})
        reason = self.stopping.reason(self.epoch)
        if reason is not None:
            self._finish(reason)
        self.epoch, self.next_batch, self.seconds = self.epoch + 1, 0, 0.0
        self.loss_total.zero_()
        self._save_last()

    def _with_warnings(self, record: Record) -> Record:
        """Adds the warnings about the routing that are new, and reports them."""
        warnings = self.watch.new_warnings()
        for text in warnings:
            self.reporter.notify(f"warning: {text}")
        return {**record, "warnings": warnings} if warnings else record

    def _finish(self, reason: str) -> None:
        """Evaluates the best weights on the test split: the last record."""
        trained = {name: value.clone() for name, value in self.evaluated.weights.state_dict().items()}
        self._load_best()
        test = self.evaluate("test")
        # The last checkpoint holds the last weights, so that the run can be extended.
        self.evaluated.weights.load_state_dict(trained)
        total = sum(record["seconds"] for record in self.history)
        self.watch.finish(self.history[-1].get("routing/gain"))
        record = {
            "epoch": self.epoch,
            "best_epoch": self.stopping.best_epoch,
            **test,
            "stopped": reason,
            "total_seconds": round(total, 3),
        }
        self.history.append(self._with_warnings(record))
        self.is_finished = True
        self.reporter.notify(f"stopped after epoch {self.epoch}: {reason}")

    def _load_best(self) -> None:
        """Gives all processes the best weights; without an epoch that had a finite value, the weights stay."""
        if self.stopping.best is None:
            return
        # With an average, the weights that train stay as they are.
        model = self.evaluated.weights
        if self.accelerator.is_main_process:
            try:
                model.load_state_dict(load_checkpoint(self.run.best_checkpoint)["model"])
            except (KeyError, RuntimeError, TypeError, AttributeError) as error:
                raise CheckpointError(f"checkpoint {self.run.best_checkpoint} is of another run: {error}") from error
        broadcast_state(self.accelerator, model)

    def _count_nonfinite_errors(self) -> int:
        layers = [module for module in self.model.modules() if isinstance(module, RoutedLayer)]
        return sum(int(layer.num_nonfinite_errors) for layer in layers)

    def _save(self, path: Path, state: dict[str, Any]) -> None:
        if self.accelerator.is_main_process:
            save_checkpoint(path, state, make_folder=False)
        self.accelerator.wait_for_everyone()

    def _save_last(self) -> None:
        scaler = self.accelerator.scaler
        self._save(
            self.run.last_checkpoint,
            {
                "model": self.task.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scheduler": self.schedule.state_dict(),
                "average": None if self.average is None else self.average.state_dict(),
                "scaler": None if scaler is None else scaler.state_dict(),
                "stopping": {"best": self.stopping.best, "best_epoch": self.stopping.best_epoch},
                "routing": self.watch.state_dict(),
                "epoch": self.epoch,
                "next_batch": self.next_batch,
                "seconds": self.seconds,
                "history": self.history,
                "is_finished": self.is_finished,
                "processes": gather_process_states(self.accelerator, self.loss_total),
            },
        )
        if self.accelerator.is_main_process:
            self.run.write_history(self.history)
        self._note_stored()

    def _restore(self, state: dict[str, Any]) -> None:
        try:
            self.task.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.schedule.load_state_dict(state["scheduler"])
            if self.average is not None:
                self.average.load_state_dict(state["average"])
            if self.accelerator.scaler is not None and state["scaler"] is not None:
                self.accelerator.scaler.load_state_dict(state["scaler"])
            self.stopping = Stopping(self.plan, **state["stopping"])
            self.watch.load_state_dict(state["routing"])
            self.epoch, self.next_batch = state["epoch"], state["next_batch"]
            self.seconds = state["seconds"]
            self.history = state["history"]
            self.is_finished = state["is_finished"]
            seed = self.task.seed + self.accelerator.process_index + 1_000_003 * self.epoch
            self.loss_total.fill_(restore_process_state(self.accelerator, state["processes"], seed))
        except (KeyError, IndexError, RuntimeError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(
                f"checkpoint {self.run.last_checkpoint} is of another run or version: {error!r}"
            ) from error
        self._note_stored()
        if self.is_finished:
            if self.stopping.reason(self.epoch - 1) is not None:
                return
            # The plan has more epochs now: the last record, with the test metrics, is made again at the new end.
            self.history, self.is_finished = self.history[:-1], False
        elif self.epoch > self.plan.max_epochs:
            raise RunError(
                f"{self.run.path} has {self.epoch - 1} epochs already, but max_epochs is {self.plan.max_epochs}; give "
                "at least one more"
            )

    def _note_stored(self) -> None:
        self._stored = (
            f"the state before epoch {self.epoch}"
            if self.next_batch == 0
            else f"the state after batch {self.next_batch} of epoch {self.epoch}"
        )
