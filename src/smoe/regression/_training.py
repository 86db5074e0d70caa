"""Objectives with masked pixels and area weights, and the training of a regressor's net by the training loop."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from smoe._files import temporary_folder
from smoe._signals import Interrupted
from smoe.losses import gaussian_crps
from smoe.regression._options import MACHINE_OPTIONS, Objective, RegressorOptions
from smoe.regression._preparation import GridSamples, keep_batch
from smoe.training.loop import Loop, TrainingDiverged
from smoe.training.plan import TrainingPlan
from smoe.training.progress import Reporter
from smoe.training.run_directory import RunDirectory, keep_freed_memory
from smoe.training.task import Metric, Task

# Bounds of the logarithm of the spread, in standard deviations of the target.
_LOWEST, _HIGHEST = -9.0, 9.0


class GridObjective(nn.Module):
    """Weighted mean of an error over samples, targets and pixels; pixels whose target is NaN do not count.

    Args:
        kind: `mse`, `mae`, `quantiles` (pinball loss) or `gaussian` (CRPS of mean and spread).
        weights: Weight of each pixel, `(H, W)`; all alike if None.
        quantiles: Quantiles of `quantiles`.
    """

    weights: Tensor | None
    levels: Tensor

    def __init__(self, kind: Objective, weights: Tensor | None = None, quantiles: Sequence[float] = ()) -> None:
        super().__init__()
        self.kind: Objective = kind
        self.register_buffer("weights", weights, persistent=False)
        self.register_buffer("levels", torch.tensor(quantiles, dtype=torch.float32), persistent=False)

    def forward(self, prediction: Tensor, target: Tensor) -> Tensor:
        """A scalar from `(B, K * n, H, W)` and `(B, K, H, W)`, with n numbers for each of K targets."""
        total, weight = self.totals(prediction, target)
        return total / weight.clamp_min(torch.finfo(weight.dtype).tiny)

    def totals(self, prediction: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Sum of the weighted errors, and of the weights."""
        is_there = ~target.isnan()
        errors = self.errors(prediction.float(), target.float().nan_to_num(0.0))
        weights = is_there.to(errors.dtype)
        if self.weights is not None:
            weights = weights * self.weights.to(errors)
        return (errors * weights).sum(), weights.sum()

    def errors(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Error of each target and pixel, `(B, K, H, W)`."""
        if self.kind == "mse":
            return (prediction - target).square()
        if self.kind == "mae":
            return (prediction - target).abs()
        if self.kind == "gaussian":
            mean, std = split_gaussian(prediction)
            return gaussian_crps(mean, std, target)
        below = target[:, :, None] - prediction.unflatten(1, (target.shape[1], -1))
        levels = self.levels.to(prediction)[:, None, None]
        return torch.maximum(levels * below, (levels - 1.0) * below).mean(dim=2)


def split_gaussian(output: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and spread from `(B, K * 2, H, W)`: two `(B, K, H, W)`."""
    parts = output.unflatten(1, (-1, 2))
    return parts[:, :, 0], parts[:, :, 1].clamp(_LOWEST, _HIGHEST).exp()


class MeanObjective(Metric):
    """The objective over a whole data set, named `loss`.

    Args:
        objective: Objective; its weights are the same for all batches.
    """

    names = ("loss",)

    def __init__(self, objective: GridObjective) -> None:
        self.objective = objective

    def totals(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Return the sum of weighted errors and the sum of weights, `(1, 2)`."""
        self.objective.to(prediction.device)
        with torch.no_grad():
            total, weight = self.objective.totals(prediction, target)
        return torch.stack([total.double(), weight.double()])[None]


def start_output(objective: Objective, quantiles: Sequence[float]) -> list[float]:
    """Numbers that a net is to give at the start for a target of mean 0 and spread 1."""
    if objective == "gaussian":
        return [0.0, 0.0]
    if objective != "quantiles":
        return [0.0]
    return [math.sqrt(2.0) * float(torch.erfinv(torch.tensor(2.0 * level - 1.0))) for level in quantiles]


# Options that do not change what is computed.
_MAY_DIFFER = frozenset(f"options.{name}" for name in (*MACHINE_OPTIONS, "compare", "keep"))


def make_plan(options: RegressorOptions, num_samples: int) -> TrainingPlan:
    """The plan of a training: the learning rate falls when the validation stops to improve, then the training ends."""
    return TrainingPlan(
        batch_size=min(options.batch_size, num_samples),
        evaluation_batch_size=max(options.batch_size, 1),
        max_epochs=options.max_epochs,
        monitor="loss",
        monitor_mode="min",
        stop_at=None,
        plateau_patience=max(1, options.patience // 3),
        plateau_factor=0.3,
        early_stop_patience=options.patience,
        device=options.device,
        num_threads=options.num_threads,
        num_workers=options.num_workers,
    )


def train_net(
    net: nn.Module,
    splits: Mapping[str, GridSamples],
    objective: GridObjective,
    options: RegressorOptions,
    *,
    directory: RunDirectory | None = None,
    resume: bool = False,
    reporter: Reporter | None = None,
    recipe: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Trains a net in place; it ends with the weights of the best validation.

    Args:
        net: Net to train.
        splits: Samples named `train` and `validation`.
        objective: Objective.
        options: Options of the regressor.
        directory: Directory of the record and the checkpoints; a temporary one if None.
        resume: Continue the training that is there.
        reporter: Logs progress.
        recipe: What the record says of the training.

    Returns:
        The records of the epochs; the last one says why the training ended.

    Raises:
        Interrupted: After a SIGINT, SIGTERM or SIGHUP. The state was stored.
        TrainingDiverged: If the loss or the weights are not finite.
    """
    if options.num_threads is not None:
        torch.set_num_threads(options.num_threads)
    keep_freed_memory()
    plan = make_plan(options, len(splits["train"]))
    task = Task(
        model=net,
        optimizer=torch.optim.Adam(net.parameters(), lr=options.learning_rate),
        loss=objective,
        metrics=[MeanObjective(objective)],
        # The score of the test part is computed in the units of the data, beside simple predictions, by `score`.
        splits={"train": splits["train"], "validation": splits["validation"]},
        collate=keep_batch,
        seed=options.seed,
        reads_ahead=True,
    )
    with ExitStack() as stack:
        is_temporary = directory is None
        if directory is None:
            directory = RunDirectory(stack.enter_context(temporary_folder("smoe-fit-")))
        stack.enter_context(directory.lock())
        # As JSON has it: what is stored has lists for tuples.
        plain = json.loads(json.dumps({"name": "regression", "recipe": dict(recipe or {})}))
        directory.check(plain, resume=resume, may_differ=_MAY_DIFFER)
        loop = Loop(task, plan, directory, reporter)
        objective.to(loop.accelerator.device)
        directory.begin(plain)
        try:
            loop.fit(resume=resume)
        except TrainingDiverged as error:
            if not is_temporary:
                raise
            # Its checkpoint goes with the folder.
            raise TrainingDiverged(error.what) from None
        if loop.signal_number is not None:
            # The training had ended, but the fit goes on after it.
            raise Interrupted(loop.signal_number)
        net.cpu().eval()
        return list(loop.state.history)
