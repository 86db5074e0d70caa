"""The training loop: trains an epoch, evaluates, keeps the best weights, and stops when nothing is left to gain."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from smoe._signals import Interrupted, Interruption
from smoe.diagnostics import RoutingGain, RoutingWatch
from smoe.nn._loss_scale import track_loss_scale
from smoe.nn._routed_layer import RoutedLayer
from smoe.training.distribution import Distribution, make_accelerator, sum_over_processes
from smoe.training.evaluation import EvaluatedModel, evaluate, gains_of_routing, make_schedule, routing_record
from smoe.training.metrics import MeanLoss, metric_names
from smoe.training.plan import LOSS, Stopping, TrainingPlan, check_monitor
from smoe.training.progress import Reporter
from smoe.training.run_directory import Record, RunDirectory, RunError
from smoe.training.run_state import FiniteState, RunCheckpoints, RunState
from smoe.training.task import DrawnSamples, ShuffledBatches, Task, load_batches, num_samples

# Reading the loss waits for the accelerator, and several processes agree on a stop by a reduction: both are done now
# and then only.
_STEPS_PER_CHECK = 25

Batch = tuple[Tensor, Tensor]


class TrainingDiverged(Exception):
    """The loss or the weights are no longer finite.

    Args:
        what: What is not finite.
        kept: What a checkpoint holds; nothing if none is left.
    """

    def __init__(self, what: str, kept: str = "") -> None:
        remedy = "begin another run with a lower learning rate, or look for values that are not finite in the data"
        super().__init__("; ".join(part for part in (what, kept, remedy) if part))
        self.what = what


class Loop:
    """Trains a task by a plan and stores the record in a run directory.

    Args:
        task: What is trained on what.
        plan: Batches, schedule and stopping.
        run: Directory of the run.
        reporter: Logs progress; None logs nothing.

    Attributes:
        signal_number: Signal that asked for a stop after the last step, when nothing was left to stop; None without.

    Raises:
        MonitorError: If the plan monitors a metric that the task does not have.
    """

    signal_number: int | None = None

    def __init__(self, task: Task, plan: TrainingPlan, run: RunDirectory, reporter: Reporter | None = None) -> None:
        check_monitor(plan, metric_names(task.metrics))
        self.task, self.plan, self.run = task, plan, run
        needs_loss = plan.monitor == LOSS and LOSS not in metric_names(task.metrics)
        self.metrics = [*task.metrics, MeanLoss(task.loss)] if needs_loss else list(task.metrics)
        self.accelerator = make_accelerator(plan)
        self.evaluated = EvaluatedModel(task, plan, self.accelerator)
        self.average = self.evaluated.average
        self.distribution = _distribute(self.accelerator, task, plan)
        self.evaluated.distribute(self.distribution)
        with self.distribution.whole(task.model):
            self.watch = RoutingWatch(task.model, task.regions)
        self.model, self.optimizer = self.distribution.model, self.distribution.optimizer
        # accelerate's own step looks for a package on the disk each time, and its zero_grad at a signature, which takes
        # a small model as long as its forward pass. Only a loss scaler, or an XLA device, needs what it does besides.
        is_plain = self.accelerator.scaler is None and self.accelerator.device.type in ("cpu", "cuda")
        self.stepper = task.optimizer if is_plain else self.optimizer
        is_main = self.accelerator.is_main_process
        self.reporter = reporter if reporter is not None and is_main else Reporter()
        self.schedule = make_schedule(task.optimizer, plan)
        self.finite_state = FiniteState(task.model)
        loss_total = torch.zeros((), dtype=torch.float64, device=self.accelerator.device)
        self.state = RunState(Stopping(plan), loss_total)
        self.checkpoints = RunCheckpoints(
            run, self.accelerator, task, self.distribution, self.evaluated, self.schedule, self.watch
        )
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
        """Trains to the end of the plan and returns the last record, with the metrics of a test split if there is one.

        The model has the best weights afterwards.

        Args:
            resume: Continue from the last checkpoint, if there is one. The result equals that of a run that was not
                stopped if the number of processes is the same; see `restore_process_state` for another number. A run
                that has ended continues if the plan has more epochs now.

        Raises:
            Interrupted: After a SIGINT, SIGTERM or SIGHUP. The state was stored.
            TrainingDiverged: If the loss or the weights are not finite. The last state that was finite stays stored.
            RunError: If another process trains in the run directory, it cannot be written, or the connection to another
                process of the training is lost.
            CheckpointError: If a checkpoint cannot be read or written.
        """
        checkpoints, state = self.checkpoints, self.state
        with self.run.lock(), self._named_lost_processes():
            if self.accelerator.is_main_process:
                self.run.make_folders()
            if resume and checkpoints.exist():
                checkpoints.restore_last(state, self.plan)
            else:
                checkpoints.save_last(state)
            with Interruption() as interruption:
                while not state.is_finished:
                    self._end_epoch(self._train_epoch(interruption))
            self.signal_number = interruption.signal_number
            self._load_best()
        return state.history[-1]

    @contextmanager
    def _named_lost_processes(self) -> Iterator[None]:
        """Turns the loss of a process that reads data, or of another one that trains, into one line."""
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
            raise RunError(f"{what}; {self.run.last_checkpoint} holds {self.checkpoints.stored}; {remedy}") from error

    def evaluate(self, split: str) -> dict[str, float]:
        """Returns the metrics of the model, or of the average of its weights, on a split, named `split/metric`."""
        task, model = self.task, self.evaluated.get(self.distribution)
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
        self.distribution.end_evaluation(model)
        return {f"{split}/{name}": value for name, value in values.items()}

    def _train_epoch(self, interruption: Interruption) -> Batch | None:
        """Trains the rest of the epoch; returns its last batch, or None if there was none left."""
        self.batches.start(self.state.epoch, self.state.next_batch)
        self.reporter.begin_epoch(self.state.epoch, self.batches.num_batches, self.state.next_batch)
        started = time.perf_counter()
        self.model.train()
        if self.task.begin_epoch is not None:
            self.task.begin_epoch(self.state.epoch)
        samples = self.task.splits["train"]
        if isinstance(samples, DrawnSamples):
            samples.start_epoch(self.state.epoch)
        device, num_workers = self.accelerator.device, self.plan.num_workers
        num_parts, num_done = self.batches.num_parts, 0
        batch: Batch | None = None
        ahead = self.task.reads_ahead
        for batch in load_batches(samples, self.batches, self.task.collate, device, num_workers, reads_ahead=ahead):
            input, target = batch
            num_done += 1
            is_whole = num_done % num_parts == 0
            # The processes add up their gradients once for each batch.
            with nullcontext() if is_whole else self.distribution.without_sum():
                loss = self.task.loss(self.model(input), target)
                if self.task.auxiliary_loss is not None:
                    loss = loss + self.task.auxiliary_loss(self.model)
                loss = track_loss_scale(loss, self.model)
                self.accelerator.backward(loss if num_parts == 1 else loss / num_parts)
            self.state.loss_total += loss.detach() / num_parts
            if not is_whole:
                continue
            self.stepper.step()
            self.stepper.zero_grad()
            self.state.next_batch += 1
            if self.average is not None:
                self.average.observe(self.task.model, self.state.epoch, self.state.next_batch)
            if self._is_interrupted(interruption):
                self.state.seconds += time.perf_counter() - started
                self._check_finite()
                self.checkpoints.save_last(self.state)
                raise Interrupted(interruption.signal_number or 15)
        self.state.seconds += time.perf_counter() - started
        return batch

    def _is_interrupted(self, interruption: Interruption) -> bool:
        """Reports the step, checks the loss now and then, and returns whether to stop after this step."""
        is_alone = self.accelerator.num_processes == 1
        if self.state.next_batch % _STEPS_PER_CHECK and self.state.next_batch < self.batches.num_batches:
            self.reporter.step(None)
            # Several processes receive the signal at different steps; all must stop at the same one.
            return is_alone and interruption.signal_number is not None
        flag = self.state.loss_total.new_tensor(float(interruption.signal_number is not None))
        loss, num_interrupted = sum_over_processes(
            self.accelerator, torch.stack([self.state.loss_total, flag])
        ).tolist()
        self._check_loss(loss)
        self.reporter.step(loss / self.accelerator.num_processes / self.state.next_batch)
        return interruption.signal_number is not None if is_alone else num_interrupted > 0

    def _check_loss(self, loss: float) -> None:
        if not math.isfinite(loss):
            self._diverge(f"the loss became {loss} in epoch {self.state.epoch}, by batch {self.state.next_batch}")

    def _check_finite(self) -> None:
        """Ends the run if the loss or the state is not finite, in all processes."""
        models = [self.task.model] if self.average is None else [self.task.model, self.average.model]
        is_kept = self.finite_state.is_kept(models, self.task.optimizer)
        state = torch.stack([self.state.loss_total, self.state.loss_total.new_tensor(float(not is_kept))])
        loss, num_lost = sum_over_processes(self.accelerator, state).tolist()
        self._check_loss(loss)
        if num_lost:
            self._diverge(f"the weights are not finite after batch {self.state.next_batch} of epoch {self.state.epoch}")

    def _diverge(self, what: str) -> None:
        raise TrainingDiverged(what, f"{self.run.last_checkpoint} holds {self.checkpoints.stored}")

    def _end_epoch(self, batch: Batch | None) -> None:
        started = time.perf_counter()
        self._check_finite()
        validation = self.evaluate("validation")
        monitored = validation[f"validation/{self.plan.monitor}"]
        learning_rate = self.optimizer.param_groups[0]["lr"]
        self.schedule.step(monitored)
        is_best = self.state.stopping.observe(self.state.epoch, monitored)
        summed_loss = sum_over_processes(self.accelerator, self.state.loss_total)
        mean_loss = float(summed_loss) / (self.accelerator.num_processes * self.batches.num_batches)
        if batch is None:
            # The run was stopped after the last batch of the epoch.
            self.batches.start(self.state.epoch, self.batches.num_batches - 1)
            samples = self.task.splits["train"]
            *_, batch = load_batches(samples, self.batches, self.task.collate, self.accelerator.device)
        routing = routing_record(self.watch, self.task, self.accelerator, self.distribution, batch)
        self.state.seconds += time.perf_counter() - started
        record: Record = {
            "epoch": self.state.epoch,
            "train/loss": mean_loss,
            **validation,
            **routing,
            "learning_rate": learning_rate,
            "nonfinite_errors": self._count_nonfinite_errors(),
            "seconds": round(self.state.seconds, 3),
        }
        self.state.history.append(self._with_warnings(record))
        self.reporter.end_epoch(record, is_best=is_best)
        if is_best:
            self.checkpoints.save_best(self.state.epoch, record)
        reason = self.state.stopping.reason(self.state.epoch)
        if reason is not None:
            self._finish(reason)
        self.state.begin_next_epoch()
        self.checkpoints.save_last(self.state)

    def _with_warnings(self, record: Record) -> Record:
        """Adds the warnings about the routing that are new, and reports them."""
        warnings = self.watch.new_warnings()
        for text in warnings:
            self.reporter.notify(f"warning: {text}")
        return {**record, "warnings": warnings} if warnings else record

    def _finish(self, reason: str) -> None:
        """Compares the best weights with convolutions, and evaluates them on a test split: the last record."""
        trained = {name: value.clone() for name, value in self.evaluated.weights.state_dict().items()}
        self._load_best()
        gains = self._gains_of_routing()
        test = self.evaluate("test") if "test" in self.task.splits else {}
        # The last checkpoint holds the last weights, so that the run can be extended.
        self.evaluated.weights.load_state_dict(trained)
        total = sum(record["seconds"] for record in self.state.history)
        self.watch.finish(gains)
        record = {
            "epoch": self.state.epoch,
            "best_epoch": self.state.stopping.best_epoch,
            **test,
            **({"routing_gains": [gain.as_record() for gain in gains]} if gains else {}),
            "stopped": reason,
            "total_seconds": round(total, 3),
        }
        self.state.history.append(self._with_warnings(record))
        self.state.is_finished = True
        self.reporter.notify(f"stopped after epoch {self.state.epoch}: {reason}")

    def _gains_of_routing(self) -> list[RoutingGain]:
        model = self.evaluated.get(self.distribution)
        # A wrapper such as DistributedDataParallel expects a whole backward pass after each pass with gradients.
        model = self.task.model if model is self.model else model
        share = self.plan.batch_size // (self.accelerator.num_processes * self.batches.num_parts)
        return gains_of_routing(self.task, model, self.accelerator, self.distribution, share)

    def _load_best(self) -> None:
        """Gives all processes the best weights; without an epoch that had a finite value, the weights stay."""
        if self.state.stopping.best is not None:
            self.checkpoints.load_best()

    def _count_nonfinite_errors(self) -> int:
        layers = [module for module in self.model.modules() if isinstance(module, RoutedLayer)]
        return sum(int(layer.num_nonfinite_errors) for layer in layers)


def _distribute(accelerator: Accelerator, task: Task, plan: TrainingPlan) -> Distribution:
    """Distributes the model and the optimiser of a task over the processes, as a plan says."""
    if plan.sharding == "none" or accelerator.num_processes == 1:
        return Distribution(accelerator, task.model, task.optimizer)
    from smoe.training.sharded_model import ShardedModel

    # An auxiliary loss reads the scores of the gates between the forward and the backward pass.
    is_freed = task.auxiliary_loss is None
    return ShardedModel(accelerator, task.model, task.optimizer, reshard_after_forward=is_freed)
