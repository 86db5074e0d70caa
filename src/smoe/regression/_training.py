"""Objectives with masked pixels and area weights, and the training of a regressor's net by the training loop."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from smoe._files import temporary_folder
from smoe.errors import Interrupted
from smoe.losses import gaussian_crps
from smoe.regression._ladder import GridLadder
from smoe.regression._options import MACHINE_OPTIONS, Objective, RegressorOptions
from smoe.regression._preparation import GridSamples
from smoe.training.loop import Loop, TrainingDiverged
from smoe.training.plan import TrainingPlan
from smoe.training.progress import Reporter
from smoe.training.run_directory import RunDirectory, keep_freed_memory
from smoe.training.task import Metric, Task

_QUICK_EPOCHS = 5
# Bounds of the logarithm of the spread, in standard deviations of the target.
_LOWEST, _HIGHEST = -9.0, 9.0


class GridObjective(nn.Module):
    """Weighted mean of an error over samples, targets and pixels; pixels whose target is NaN do not count."""

    weights: Tensor | None
    levels: Tensor

    def __init__(
        self,
        kind: Objective,
        weights: Tensor | None = None,
        quantiles: Sequence[float] = (),
        own: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.own = own
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
        if self.own is not None:
            return self.own(prediction, target)
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
    """The objective over a whole data set, named `loss`."""

    names = ("loss",)

    def __init__(self, objective: GridObjective) -> None:
        self.objective = objective

    def totals(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Return the sum of weighted errors and the sum of weights, `(1, 2)`."""
        self.objective.to(prediction.device)
        with torch.no_grad():
            total, weight = self.objective.totals(prediction, target)
        return torch.stack([total.double(), weight.double()])[None]


class NetSamples(Dataset[tuple[Tensor, Tensor]]):
    """What a net learns: normalised inputs, and targets less the base that it corrects; NaN marks missing targets."""

    def __init__(
        self, samples: GridSamples, ladder: GridLadder, base: np.ndarray, scale: np.ndarray, *, is_own: bool
    ) -> None:
        self.samples, self.ladder, self.base, self.is_own = samples, ladder, base, is_own
        self.scale = scale[:, None, None].astype(np.float32)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        input, target = self.__getitems__([index])
        return input[0], target[0]

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """A batch `(B, C, H, W)` and `(B, K, H, W)`."""
        before, after = self.samples.physical(indices)
        base = np.asarray(self.base[np.asarray(indices)])
        input = self.ladder.net_inputs(before, base, *self.samples.times(indices), is_own=self.is_own)
        return torch.from_numpy(input), torch.from_numpy((after - base) / self.scale)


def keep_batch(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Collates nothing: the samples are read as a batch."""
    return batch


def normal_quantiles(levels: Sequence[float]) -> np.ndarray:
    """Quantiles of the normal distribution."""
    return math.sqrt(2.0) * torch.erfinv(2.0 * torch.tensor(levels, dtype=torch.float64) - 1.0).numpy()


def start_map(options: RegressorOptions, spread: np.ndarray) -> np.ndarray:
    """What a net predicts before it has learned anything, `(K * n, H, W)`, from the spread of its base's errors."""
    zero = np.zeros_like(spread)
    if options.objective == "gaussian":
        parts = [zero, np.log(np.maximum(spread, 1e-3))]
    elif options.objective == "quantiles":
        parts = [level * spread for level in normal_quantiles(options.quantiles)]
    else:
        parts = [zero]
    return np.stack(parts, axis=1).reshape(-1, *spread.shape[1:]).astype(np.float32)


def objective_errors(values: np.ndarray, truth: np.ndarray, options: RegressorOptions) -> np.ndarray:
    """Error of predictions `(N, K, n, H, W)` by the objective, `(N, K, H, W)`; NaN where there is no truth."""
    # Squares of values of any unit.
    values, truth = values.astype(np.float64), truth.astype(np.float64)
    if options.objective == "gaussian":
        mean, std = (torch.from_numpy(np.ascontiguousarray(values[:, :, part])) for part in (0, 1))
        return gaussian_crps(mean, std, torch.from_numpy(truth)).numpy()
    if options.objective == "quantiles":
        levels = np.asarray(options.quantiles)[:, None, None]
        below = truth[:, :, None] - values
        return np.maximum(levels * below, (levels - 1.0) * below).mean(axis=2)
    error = values[:, :, 0] - truth
    return np.abs(error) if options.objective == "mae" else np.square(error)


# Options that do not change what is computed.
_MAY_DIFFER = frozenset(f"options.{name}" for name in (*MACHINE_OPTIONS, "compare", "keep", "refit"))


# Pixels of a batch at least, steps of an epoch at most, and values of a batch at most, by default.
_BATCH_PIXELS, _EPOCH_STEPS, _BATCH_VALUES = 4096, 50, 4_000_000


def choose_batch(options: RegressorOptions, num_samples: int, num_pixels: int, num_channels: int) -> int:
    """Samples of a batch."""
    wanted = max(16, _BATCH_PIXELS // num_pixels, -(-num_samples // _EPOCH_STEPS))
    chosen = options.batch_size or min(wanted, max(16, _BATCH_VALUES // (num_pixels * num_channels)))
    return min(chosen, num_samples)


def make_plan(options: RegressorOptions, batch_size: int) -> TrainingPlan:
    """The plan of a training: the learning rate falls when the validation stops to improve, then the training ends."""
    return TrainingPlan(
        batch_size=batch_size,
        evaluation_batch_size=batch_size,
        max_epochs=min(options.max_epochs, _QUICK_EPOCHS) if options.quick else options.max_epochs,
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
    splits: Mapping[str, NetSamples],
    objective: GridObjective,
    options: RegressorOptions,
    *,
    directory: RunDirectory | None = None,
    resume: bool = False,
    reporter: Reporter | None = None,
    recipe: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Trains a net in place; it ends with the weights of the best validation."""
    if options.num_threads is not None:
        torch.set_num_threads(options.num_threads)
    keep_freed_memory()
    example = splits["train"][0][0]
    batch = choose_batch(options, len(splits["train"]), example[0].numel(), len(example))
    plan = make_plan(options, batch)
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
