"""The training loop: train an epoch, evaluate, keep the best, stop when nothing is left to gain."""

from __future__ import annotations

import copy
import math
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from smoe.diagnostics.routing_changes import RoutingChanges
from smoe.nn.loss_scale import track_loss_scale
from smoe.nn.routed_layer import RoutedLayer
from smoe.training.batches import DrawnSamples, ShuffledBatches, load_batches, num_samples
from smoe.training.checkpoints import CheckpointError, load_checkpoint, save_checkpoint
from smoe.training.devices import make_accelerator
from smoe.training.evaluation import evaluate, sum_over_processes
from smoe.training.interruption import Interrupted, Interruption
from smoe.training.plan import Stopping, TrainingPlan
from smoe.training.progress import Reporter, SilentReporter
from smoe.training.run_directory import Record, RunDirectory
from smoe.training.schedule import make_schedule
from smoe.training.task import Task
from smoe.training.weight_average import WeightAverage

# Reading the loss waits for the accelerator, so it is read now and then only.
_BATCHES_PER_LOSS = 25


class TrainingDiverged(Exception):
    """The loss is no longer finite."""


class Loop:
    """Trains a task by a plan and keeps the record in a run directory.

    Args:
        task: what is trained on what.
        plan: how long.
        run: where the record is kept.
        reporter: hears of the progress.
    """

    def __init__(self, task: Task, plan: TrainingPlan, run: RunDirectory, reporter: Reporter | None = None) -> None:
        self.task, self.plan, self.run = task, plan, run
        self.accelerator = make_accelerator(plan)
        device = self.accelerator.device
        # Copied before accelerate wraps the model: its wrapped forward, copied, would still call the original.
        self.average = None if plan.average_every is None else WeightAverage(task.model.to(device), plan)
        needs_twin = task.for_evaluation is not None and self.average is None
        self.twin = copy.deepcopy(task.model).to(device) if needs_twin else None
        self.model, self.optimizer = self.accelerator.prepare(task.model, task.optimizer)
        # accelerate's own step looks for a package on the disk each time, and its zero_grad at a signature, which takes
        # a small model as long as its forward pass. Only a loss scaler, or an XLA device, needs what it does besides.
        is_plain = self.accelerator.scaler is None and self.accelerator.device.type in ("cpu", "cuda")
        self.stepper = task.optimizer if is_plain else self.optimizer
        is_main = self.accelerator.is_main_process
        self.reporter = reporter if reporter is not None and is_main else SilentReporter()
        self.schedule = make_schedule(task.optimizer, plan)
        self.stopping = Stopping(plan)
        self.routing_changes = RoutingChanges(task.model, task.regions)
        self.history: list[Record] = []
        self.epoch = 1
        self.next_batch = 0
        self.loss_total = torch.zeros((), dtype=torch.float64, device=device)
        self.seconds = 0.0
        self.is_finished = False
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

    def fit(self, *, resume: bool = False) -> Record:
        """Trains to the end of the plan and returns the last record, with the test metrics.

        Args:
            resume: continue from the last checkpoint, if there is one, as if the run had never stopped.

        Raises:
            Interrupted: after a SIGINT or SIGTERM; the state was saved.
            TrainingDiverged: the loss is not finite; the checkpoints are those of the last epoch.
        """
        has_checkpoint = resume and self.run.last_checkpoint.exists()
        # All processes must have looked before one of them writes.
        self.accelerator.wait_for_everyone()
        if has_checkpoint:
            self._restore(load_checkpoint(self.run.last_checkpoint))
        else:
            self._save_last()
        with Interruption() as interruption:
            while not self.is_finished:
                self._train_epoch(interruption)
                self._end_epoch()
        return self.history[-1]

    def evaluate(self, split: str) -> dict[str, float]:
        """The metrics of the model as it is, or of the average of its weights, on a split, named `split/metric`."""
        task, model = self.task, self._model_to_evaluate()
        # What accelerate has wrapped casts by itself.
        precision = nullcontext() if model is self.model else self.accelerator.autocast()
        with precision:
            values = evaluate(
                self.accelerator,
                model,
                task.splits[split],
                task.metrics,
                task.collate,
                self.plan.evaluation_batch_size,
                self.plan.num_workers,
            )
        return {f"{split}/{name}": value for name, value in values.items()}

    def _model_to_evaluate(self) -> nn.Module:
        if self.average is not None:
            model = self.average.model
        elif self.twin is not None:
            model = self.twin
            model.load_state_dict(self._model_state())
        else:
            return self.model
        # As DistributedDataParallel does for the model it wraps: the running means are those of process 0.
        self._broadcast(model)
        return model if self.task.for_evaluation is None else self.task.for_evaluation(model)

    def _train_epoch(self, interruption: Interruption) -> None:
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
        for input, target in load_batches(samples, self.batches, self.task.collate, device, num_workers):
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
            self._report_step()
            if self._is_interrupted(interruption):
                self.seconds += time.perf_counter() - started
                self._save_last()
                raise Interrupted(interruption.signal_number or 15)
        self.seconds += time.perf_counter() - started

    def _report_step(self) -> None:
        is_due = self.next_batch % _BATCHES_PER_LOSS == 0 or self.next_batch == self.batches.num_batches
        mean = float(self.loss_total) / self.next_batch if is_due else None
        if mean is not None and not math.isfinite(mean):
            raise TrainingDiverged(
                f"the loss became {mean} in epoch {self.epoch}, by batch {self.next_batch}; the checkpoints hold the "
                f"state before this epoch; lower the learning rate, or look for values that are not finite in the data"
            )
        self.reporter.step(mean)

    def _end_epoch(self) -> None:
        started = time.perf_counter()
        validation = self.evaluate("validation")
        monitored = validation[f"validation/{self.plan.monitor}"]
        learning_rate = self.optimizer.param_groups[0]["lr"]
        self.schedule.step(monitored)
        is_best = self.stopping.observe(self.epoch, monitored)
        summed_loss = sum_over_processes(self.accelerator, self.loss_total)
        mean_loss = float(summed_loss) / (self.accelerator.num_processes * self.batches.num_batches)
        self.seconds += time.perf_counter() - started
        record: Record = {
            "epoch": self.epoch,
            "train/loss": mean_loss,
            **validation,
            **self.routing_changes.observe(self.task.model),
            "learning_rate": learning_rate,
            "nonfinite_errors": self._count_nonfinite_errors(),
            "seconds": round(self.seconds, 3),
        }
        self.history.append(record)
        self.reporter.end_epoch(record, is_best=is_best)
        if is_best:
            weights = self._model_state() if self.average is None else self.average.model.state_dict()
            self._save(self.run.best_checkpoint, {"model": weights, "epoch": self.epoch, "record": record})
        reason = self.stopping.reason(self.epoch)
        if reason is not None:
            self._finish(reason)
        self.epoch, self.next_batch = self.epoch + 1, 0
        self.loss_total.zero_()
        self._save_last()

    def _finish(self, reason: str) -> None:
        """Evaluates the best weights on the test split: the last record."""
        if self.stopping.best is not None:
            # The last weights of a run that never had a finite value stay as they are.
            best = load_checkpoint(self.run.best_checkpoint)["model"] if self.accelerator.is_main_process else None
            self._load_everywhere(best)
        test = self.evaluate("test")
        total = sum(record["seconds"] for record in self.history)
        self.history.append(
            {
                "epoch": self.epoch,
                "best_epoch": self.stopping.best_epoch,
                **test,
                "stopped": reason,
                "total_seconds": round(total, 3),
            }
        )
        self.is_finished = True
        self.reporter.say(f"stopped after epoch {self.epoch}: {reason}")

    def _load_everywhere(self, state: dict[str, Tensor] | None) -> None:
        # With an average, the weights that train stay as they are.
        model = self.accelerator.unwrap_model(self.model) if self.average is None else self.average.model
        if state is not None:
            model.load_state_dict(state)
        self._broadcast(model)

    def _broadcast(self, model: nn.Module) -> None:
        """Gives all processes the weights and buffers of process 0."""
        if self.accelerator.num_processes > 1:
            for tensor in model.state_dict().values():
                torch.distributed.broadcast(tensor, src=0)

    def _is_interrupted(self, interruption: Interruption) -> bool:
        is_interrupted = interruption.signal_number is not None
        if self.accelerator.num_processes == 1:
            return is_interrupted
        # The processes hear of it at different steps; all must stop at the same one.
        flag = torch.tensor(float(is_interrupted), device=self.accelerator.device)
        return bool(sum_over_processes(self.accelerator, flag) > 0)

    def _count_nonfinite_errors(self) -> int:
        layers = [module for module in self.model.modules() if isinstance(module, RoutedLayer)]
        return sum(int(layer.num_nonfinite_errors) for layer in layers)

    def _model_state(self) -> dict[str, Tensor]:
        return self.accelerator.unwrap_model(self.model).state_dict()

    def _save(self, path: Path, state: dict[str, Any]) -> None:
        if self.accelerator.is_main_process:
            save_checkpoint(path, state)
        self.accelerator.wait_for_everyone()

    def _save_last(self) -> None:
        scaler = self.accelerator.scaler
        self._save(
            self.run.last_checkpoint,
            {
                "model": self._model_state(),
                "optimizer": self.optimizer.state_dict(),
                "scheduler": self.schedule.state_dict(),
                "average": None if self.average is None else self.average.state_dict(),
                "scaler": None if scaler is None else scaler.state_dict(),
                "stopping": {"best": self.stopping.best, "best_epoch": self.stopping.best_epoch},
                "routing_changes": self.routing_changes.state_dict(),
                "epoch": self.epoch,
                "next_batch": self.next_batch,
                "loss_total": self.loss_total,
                "seconds": self.seconds,
                "history": self.history,
                "is_finished": self.is_finished,
                "torch_rng": torch.get_rng_state(),
            },
        )
        if self.accelerator.is_main_process:
            self.run.write_history(self.history)
        self.seconds = 0.0 if self.next_batch == 0 else self.seconds

    def _restore(self, state: dict[str, Any]) -> None:
        try:
            self.accelerator.unwrap_model(self.model).load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.schedule.load_state_dict(state["scheduler"])
            if self.average is not None:
                self.average.load_state_dict(state["average"])
            if self.accelerator.scaler is not None and state["scaler"] is not None:
                self.accelerator.scaler.load_state_dict(state["scaler"])
            self.stopping = Stopping(self.plan, **state["stopping"])
            if "routing_changes" in state:  # checkpoints of earlier versions are without
                self.routing_changes.load_state_dict(state["routing_changes"])
            self.epoch, self.next_batch = state["epoch"], state["next_batch"]
            self.loss_total = state["loss_total"].to(self.accelerator.device)
            self.seconds = state["seconds"]
            self.history = state["history"]
            self.is_finished = state["is_finished"]
            torch.set_rng_state(state["torch_rng"])
        except (KeyError, RuntimeError) as error:
            raise CheckpointError(f"checkpoint {self.run.last_checkpoint} is of another program: {error}") from error
        if self.accelerator.is_main_process:
            self.run.write_history(self.history)
        if not self.is_finished:
            self.reporter.say(f"resuming in epoch {self.epoch} at batch {self.next_batch}")
