"""The training of nets by the training loop, and what they add to the simple model that they correct."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor, nn
from torch.utils.data import Dataset

from smoe._files import temporary_folder
from smoe.errors import Interrupted
from smoe.regression._fitted import (
    FOLDS,
    central,
    errors_in_units,
    mix,
    objective_errors,
    output_values,
    run_net,
    split_gaussian,
)
from smoe.regression._ladder import Ladder, Spread, TimeBasis
from smoe.regression._ladder_fit import FittedLadders
from smoe.regression._nets import Regression
from smoe.regression._options import MACHINE_OPTIONS, SIMPLE, Objective, RegressorOptions
from smoe.regression._preparation import GridSamples, Prepared
from smoe.regression._scores import bootstrap_spread, weighted_means
from smoe.training.loop import Loop, TrainingDiverged
from smoe.training.plan import TrainingPlan
from smoe.training.progress import Reporter
from smoe.training.run_directory import RunDirectory, keep_freed_memory
from smoe.training.task import Metric, Task

_QUICK_EPOCHS = 5
# Blocks of times of the validation part that nets are judged by, and their share without evidence, which is more where
# folds tell: flat optima over 51 targets of real data that are none of the benchmark.
_NUM_BLOCKS, _PRIOR, _PRIOR_OF_FOLDS = 6, 0.0, 0.25


class GridObjective(nn.Module):
    """Weighted mean of an error over samples, targets and pixels; pixels whose target is NaN do not count."""

    weights: Tensor
    levels: Tensor

    def __init__(
        self, options: RegressorOptions, weights: np.ndarray, own: Callable[[Tensor, Tensor], Tensor] | None = None
    ) -> None:
        super().__init__()
        self.kind: Objective = options.objective
        self.own = own
        self.register_buffer("weights", torch.from_numpy(weights.astype(np.float32)), persistent=False)
        self.register_buffer("levels", torch.tensor(options.quantiles, dtype=torch.float32), persistent=False)

    def forward(self, prediction: Tensor, target: Tensor) -> Tensor:
        """A scalar from `(B, K * n, H, W)` and `(B, K, H, W)`, with n numbers for each of K targets."""
        total, weight = self.totals(prediction, target)
        return total / weight.clamp_min(torch.finfo(weight.dtype).tiny)

    def totals(self, prediction: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Sum of the weighted errors, and of the weights."""
        errors = self.errors(prediction.float(), target.float().nan_to_num(0.0))
        weights = ~target.isnan() * self.weights.to(errors)
        return (errors * weights).sum(), weights.sum()

    def errors(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Error of each target and pixel, `(B, K, H, W)`."""
        if self.own is not None:
            return self.own(prediction, target)
        values = prediction.unflatten(1, (target.shape[1], -1))
        if self.kind == "gaussian":
            values = torch.stack(split_gaussian(prediction), dim=2)
        return objective_errors(values, target, self.kind, self.levels)


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
        self, samples: GridSamples, ladder: Ladder, base: np.ndarray, scale: np.ndarray, *, is_own: bool
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


# Options that do not change what is computed.
_MAY_DIFFER = frozenset(f"options.{name}" for name in (*MACHINE_OPTIONS, "compare", "keep", "refit"))


# Pixels of a batch at least, steps of an epoch at most, and values of a batch at most, by default.
_BATCH_PIXELS, _EPOCH_STEPS, _BATCH_VALUES = 4096, 50, 4_000_000


def choose_batch(options: RegressorOptions, num_samples: int, num_pixels: int, num_channels: int) -> int:
    """Samples of a batch."""
    wanted = max(16, _BATCH_PIXELS // num_pixels, -(-num_samples // _EPOCH_STEPS))
    chosen = options.batch_size or min(wanted, max(16, _BATCH_VALUES // (num_pixels * num_channels)))
    return min(chosen, num_samples)


def train_net(
    net: nn.Module, splits: Mapping[str, NetSamples], objective: GridObjective, options: RegressorOptions, *,
    directory: RunDirectory | None = None, resume: bool = False, reporter: Reporter | None = None,
    recipe: Mapping[str, Any] | None = None, compares_routing: bool = True,
) -> list[dict[str, Any]]:  # fmt: skip
    """Trains a net in place; it ends with the weights of the best validation."""
    if options.num_threads is not None:
        torch.set_num_threads(options.num_threads)
    keep_freed_memory()
    example = splits["train"][0][0]
    batch = choose_batch(options, len(splits["train"]), example[0].numel(), len(example))
    # The learning rate falls when the validation stops to improve, then the training ends.
    plan = TrainingPlan(
        batch_size=batch,
        evaluation_batch_size=batch,
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
    task = Task(
        model=net,
        optimizer=torch.optim.Adam(net.parameters(), lr=options.learning_rate),
        loss=objective,
        metrics=[MeanObjective(objective)],
        # The score of the test part is computed in the units of the data, beside simple predictions, by `score`.
        splits={"train": splits["train"], "validation": splits["validation"]},
        collate=keep_batch,
        seed=options.seed,
        compares_routing=compares_routing,
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


_BATCH = 32
# Bytes of the predictions that nets are judged by.
_MOST_BYTES = 1 << 29
# Pixels whose errors show how these are distributed, and times that a season counts beside its own.
_MOST_PIXELS, _PRIOR_TIMES = 300, 6.0


@dataclass(frozen=True)
class BaseFields:
    """A simple model's predictions at times that it was not fitted to."""

    name: str  # the simple model
    train: np.ndarray  # predictions of the training samples, `(N, K, H, W)`
    validation: np.ndarray  # predictions of the validation samples
    spread: Spread  # how its errors are distributed
    scale: np.ndarray  # standard deviation of the errors over all pixels, `(K,)`

    @classmethod
    def of(cls, ladders: FittedLadders, prepared: Prepared, name: str, options: RegressorOptions) -> BaseFields:
        """Predicts: each block of times by the ladder that has not seen it."""
        shape = prepared.statistics.target_mask.shape
        found = {}
        squares, counts = np.zeros(shape), np.zeros(shape)
        pixels = np.arange(0, shape[1] * shape[2], max(1, shape[1] * shape[2] // _MOST_PIXELS))
        kept, valid, of_blocks = [], [], []
        for split in ("train", "validation"):
            samples = prepared.splits[split]
            found[split] = _empty_like(samples.targets.values, f"{name} {split}", (len(samples), *shape))
            blocks = ladders.block if split == "train" else np.full(len(samples), len(ladders.blocks))
            for block, ladder in enumerate([*ladders.blocks, ladders.train]):
                of_block = np.flatnonzero(blocks == block)
                for first in range(0, len(of_block), _BATCH):
                    rows = of_block[first : first + _BATCH]
                    before, after = samples.physical(rows)
                    predicted = ladder.predict(before, *samples.times(rows), names=[name])[name]
                    found[split][rows] = predicted
                    errors = after - predicted
                    kept.append(errors.reshape(*errors.shape[:2], -1)[:, :, pixels])
                    valid.append(samples.times(rows)[1])
                    of_blocks.append(np.full(len(rows), block))
                    squares += np.nansum(np.square(errors, dtype=np.float64), axis=0)
                    counts += (~np.isnan(errors)).sum(axis=0)
        spread = np.sqrt(squares / np.maximum(counts, 1))
        scale = np.maximum(np.sqrt(squares.sum(axis=(1, 2)) / np.maximum(counts.sum(axis=(1, 2)), 1)), 1e-30)
        spread = np.maximum(spread, 1e-3 * scale[:, None, None]).astype(np.float32)
        deviations = np.concatenate(kept) / spread.reshape(shape[0], -1)[:, pixels]
        basis = ladders.train.design.anomalies.basis
        of_errors = _find_spread(spread, deviations, np.concatenate(valid), np.concatenate(of_blocks), basis, options)
        return cls(name, found["train"], found["validation"], of_errors, scale)

    def begin(self, net: Regression, options: RegressorOptions) -> None:
        """Makes a net start at this prediction."""
        zero = np.zeros((1, *self.train.shape[1:]), np.float32)
        start = self.spread.numbers(zero, None, options)[0] / self.scale[:, None, None, None]
        if options.objective == "gaussian":
            start[:, 1] = np.log(np.maximum(start[:, 1], 1e-3))
        net.start.copy_(torch.from_numpy(start.reshape(net.start.shape)))
        net.scale.copy_(torch.from_numpy(self.scale))


def _find_spread(
    spread: np.ndarray, deviations: np.ndarray, valid: np.ndarray, block: np.ndarray, basis: TimeBasis,
    options: RegressorOptions,
) -> Spread:  # fmt: skip
    """How errors in units of each pixel's spread, `(N, K, n)`, are distributed: by season, and in all blocks of times.

    A time that is still to come is a block of its own: what it needs is not what all errors together need, but more, as
    blocks differ.
    """
    num_targets = deviations.shape[1]
    squares = np.nanmean(np.square(deviations, dtype=np.float64), axis=2)
    parts = Spread.parts(valid, basis)
    seasons = np.ones((int(parts.max()) + 1 if len(parts) else 1, num_targets))
    for part in range(len(seasons)):
        of_part = squares[parts == part]
        seasons[part] = (np.nansum(of_part, axis=0) + _PRIOR_TIMES) / (len(of_part) + _PRIOR_TIMES)
    seasons = np.sqrt(seasons)
    deviations = deviations / seasons[parts][:, :, None]
    offsets = np.zeros((num_targets, options.outputs_per_target))
    for k in range(num_targets if options.outputs_per_target > 1 else 0):
        if options.objective == "gaussian":
            offsets[k, 1] = _beyond([np.nanquantile(np.abs(each), 0.8) for each in _by_block(deviations[:, k], block)])
            offsets[k, 1] /= float(ndtri(0.9))
            continue
        for number, level in enumerate(options.quantiles):
            of_blocks = [np.nanquantile(each, level) for each in _by_block(deviations[:, k], block)]
            sign = np.sign(level - 0.5)
            offsets[k, number] = sign * _beyond(sign * np.asarray(of_blocks)) if sign else np.mean(of_blocks)
    seasons, offsets, widen = (each.astype(np.float32) for each in (seasons, offsets, np.ones(num_targets)))
    return Spread(spread, seasons, offsets, widen, basis)


def _by_block(deviations: np.ndarray, block: np.ndarray) -> list[np.ndarray]:
    parts = [deviations[block == number] for number in np.unique(block)]
    return [each for each in parts if np.isfinite(each).any()]


# Weight of the validation period beside the mean of all blocks, and part of the standard deviation of one more block
# that a quantile is moved by: of 55 targets of real data that are none of the benchmark's, 64 % have 75 to 85 % of the
# test period in the 80 % interval; with a whole standard deviation 35 %, most of the others having more.
_LAST, _MARGIN = 0.35, 0.25


def _beyond(of_blocks: Sequence[float] | np.ndarray) -> float:
    """The quantile of a block to come, from those of other blocks, the last of which is the validation period."""
    count = len(of_blocks)
    spread = float(np.std(of_blocks, ddof=1)) * (1.0 + 1.0 / count) ** 0.5 if count > 1 else 0.0
    return (1.0 - _LAST) * float(np.mean(of_blocks)) + _LAST * float(of_blocks[-1]) + _MARGIN * spread


def _empty_like(values: np.ndarray, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """An array in memory, or in a file beside that of the values where these are in one."""
    if not isinstance(values, np.memmap) or values.filename is None:
        return np.empty(shape, np.float32)
    return np.memmap(Path(values.filename).parent / f"{name}.f32", np.float32, "w+", shape=shape)


@dataclass(frozen=True)
class Judgement:
    """What predicts: the share of each net, `(K,)`; the objective of each as a share of the base's; and in words."""

    shares: dict[str, np.ndarray]
    widen: np.ndarray
    validation: dict[str, float | None]
    verdict: str


def net_fields(
    net: Regression, ladder: Ladder, samples: GridSamples, base: np.ndarray, options: RegressorOptions, *, is_own: bool
) -> np.ndarray:
    """Predictions of a net for samples with a given base, `(N, K, n, H, W)`."""
    parts = []
    for rows in _batches(len(samples)):
        before, _ = samples.physical(rows)
        input = ladder.net_inputs(before, base[rows], *samples.times(rows), is_own=is_own)
        parts.append(output_values(run_net(net, input), base[rows], net, options))
    return np.concatenate(parts)


@dataclass(frozen=True)
class Folded:
    """Training and validation samples as nets of folds see them: each third of the blocks is predicted by one net."""

    samples: GridSamples
    base: np.ndarray  # the base of each sample, `(N, K, H, W)`
    block: np.ndarray  # block of each sample; the last one is the validation period
    values: dict[str, np.ndarray]  # predictions of the net of each fold for what it has not seen, by its name

    @classmethod
    def of(cls, train: GridSamples, validation: GridSamples, base: BaseFields, block: np.ndarray) -> Folded:
        """Without nets."""
        block = np.append(block, np.full(len(validation), block.max() + 1))
        return cls(train.join(validation), np.concatenate([base.train, base.validation]), block, {})

    def rows(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Samples that the net of a fold sees, and those that it does not."""
        is_out = self.block % len(FOLDS) == FOLDS.index(name)
        return np.flatnonzero(~is_out), np.flatnonzero(is_out)

    def gathered(self) -> np.ndarray:
        """Predictions of all samples by the nets that have not seen them, `(N, K, n, H, W)`."""
        first = next(iter(self.values.values()))
        found = np.empty((len(self.block), *first.shape[1:]), np.float32)
        for name, each in self.values.items():
            found[self.rows(name)[1]] = each
        return found


def judge(
    nets: Mapping[str, Regression], base: BaseFields, validation: GridSamples, ladder: Ladder, weights: np.ndarray,
    options: RegressorOptions, *, is_own: bool, folded: Folded | None = None,
) -> Judgement:  # fmt: skip
    """Chooses the shares of the nets in what predicts, and says what they add.

    All nets have the same share, unless the SMoE net or the plain nets alone are surely better in blocks of the
    validation part. Their sum is earned as that of the ridge regression is: by half of what nets of folds add at times
    that these have not seen; without folds by the validation part, and then by squared errors less their mean at each
    pixel: that a net moves all times of one period towards the truth, as under a trend, is one number and no evidence
    of more.
    """
    # Every second or third sample of a validation part that memory may not hold.
    step = -(-base.validation.nbytes * options.outputs_per_target // _MOST_BYTES)
    rows = np.arange(0, len(validation), max(step, 1))
    validation, fields = validation.take(rows), np.asarray(base.validation[rows])
    truth = np.concatenate([validation.physical(each)[1] for each in _batches(len(validation))])
    of_base = base.spread.numbers(fields, validation.pairs.valid, options)
    values = {"base": of_base}
    names = list(nets) if options.net not in SIMPLE or is_own else []
    unseen = None if folded is None else folded.gathered()
    for name in names:
        if name not in FOLDS:
            values[name] = net_fields(nets[name], ladder, validation, fields, options, is_own=is_own)
        elif unseen is not None:
            values[name] = unseen[-len(base.validation) :][rows]

    def errors_of(found: np.ndarray) -> np.ndarray:
        return weighted_means(errors_in_units(found, truth, options), truth, weights)

    errors = {name: errors_of(each) for name, each in values.items() if name not in FOLDS}
    shares = {name: np.zeros(truth.shape[1]) for name in names}
    # Times without a truth have no error.
    there = np.isfinite(errors["base"])
    finite = [name for name in names if np.isfinite(values[name][there.any(axis=1)]).any()]
    finite = [name for name in finite if np.isfinite(errors_of(values[name])[there]).all()]
    if names and options.keep == "smoe":
        shares["net"][:] = 1.0
    elif finite:
        order = np.argsort(validation.pairs.valid, kind="stable")
        blocks = np.array_split(order, min(_NUM_BLOCKS, len(order)))
        members = [finite, *([name for name in finite if (name == "net") == is_net] for is_net in (True, False))]
        members = [each for each in members if each]
        means = [np.mean([values[name] for name in each], axis=0) for each in members]
        of_means = [errors_of(each) for each in means]
        if len(finite) > 1:
            errors["mean"] = of_means[0]
        if folded is None or unseen is None:
            prior, halves = _PRIOR, [of_base, *(of_base + 0.5 * (each - of_base) for each in means)]
            before, *after = (_errors_without_shift(each, truth, weights, options) for each in halves)
            evidence = [_gains(before, each, blocks) for each in after]
        else:
            prior, evidence = _PRIOR_OF_FOLDS, [_fold_gains(folded, unseen, base, weights, options)] * len(means)
        for k in range(truth.shape[1]):
            sure = [_earned_share(_gains(of_means[0], each, blocks)[:, k], 0.0) for each in of_means]
            chosen = int(np.argmax(sure)) if max(sure) > _SURE else 0
            share = _earned_share(evidence[chosen][:, k], prior)
            for name in members[chosen]:
                shares[name][k] = share / len(members[chosen])
        mixed = errors_of(mix(values, shares))
        is_better = np.nanmean(mixed, axis=0) < np.nanmean(errors["base"], axis=0)
        shares = {name: np.where(is_better, share, 0.0) for name, share in shares.items()}
    # Without an error there is nothing to remove.
    means_of = {name: np.nanmean(each, axis=0) + 1e-300 for name, each in errors.items()}
    ratios: dict[str, float | None] = {name: float(np.mean(each / means_of["base"])) for name, each in means_of.items()}
    widen = np.ones(truth.shape[1], np.float32)
    if options.outputs_per_target > 1 and any(share.any() for share in shares.values()):
        after, before = (_width(each, truth, options) for each in (mix(values, shares), of_base))
        widen = np.clip(after / np.maximum(before, 1e-30), 0.5, 2.0).astype(np.float32)
    return Judgement(shares, widen, ratios, _verdict(shares, errors, base.name, options, is_own=is_own))


def _earned_share(gains: np.ndarray, prior: float) -> float:
    """Share of a model that adds to another, by how much less its squared error is in blocks of times.

    A prior share, and a quarter more for each standard error of the mean gain over the blocks, or less.
    """
    gains = gains[np.isfinite(gains)]
    if len(gains) < 2:
        return 0.0
    error = float(gains.std(ddof=1)) / len(gains) ** 0.5
    return float(np.clip(prior + 0.25 * gains.mean() / max(error, 1e-300), 0.0, 1.0))


# Share that a gain of two standard errors earns.
_SURE = 0.5


def _gains(before: np.ndarray, after: np.ndarray, blocks: Sequence[np.ndarray]) -> np.ndarray:
    """How much less errors of each time and target `(N, K)` are in blocks of times, `(B, K)`."""
    with np.errstate(invalid="ignore"):
        there = [np.isfinite((before - after)[block]) for block in blocks]
        sums = [
            np.where(each, (before - after)[block], 0.0).sum(axis=0) for each, block in zip(there, blocks, strict=True)
        ]
        return np.stack(sums) / np.stack([each.sum(axis=0) for each in there])


def _fold_gains(
    folded: Folded, unseen: np.ndarray, base: BaseFields, weights: np.ndarray, options: RegressorOptions
) -> np.ndarray:
    """What half a share of the nets of folds removes in each block, `(B, K)`."""
    samples = folded.samples
    truth = np.concatenate([samples.physical(rows)[1] for rows in _batches(len(samples))])
    of_base = base.spread.numbers(folded.base, samples.pairs.valid, options)
    before, after = (
        weighted_means(errors_in_units(each, truth, options), truth, weights)
        for each in (of_base, of_base + 0.5 * (unseen - of_base))
    )
    return _gains(before, after, [np.flatnonzero(folded.block == number) for number in np.unique(folded.block)])


def _errors_without_shift(
    values: np.ndarray, truth: np.ndarray, weights: np.ndarray, options: RegressorOptions
) -> np.ndarray:
    """Errors at each time `(N, K)`; squared ones less the mean of the errors at each pixel."""
    if options.objective == "mse":
        counts = np.maximum((~np.isnan(truth)).sum(axis=0), 1)
        values = values - (np.nansum(values[:, :, 0] - truth, axis=0) / counts)[:, None]
    return weighted_means(errors_in_units(values, truth, options), truth, weights)


def _batches(count: int) -> list[np.ndarray]:
    return [np.arange(first, min(first + _BATCH, count)) for first in range(0, count, _BATCH)]


def _width(values: np.ndarray, truth: np.ndarray, options: RegressorOptions) -> np.ndarray:
    """How many half widths of an interval, on their side, the errors reach, at the 0.8 quantile, `(K,)`."""
    middle = central(options, values)
    sides = np.where(truth < middle, middle - values[:, :, 0], values[:, :, -1] - middle)
    half = values[:, :, 1] if options.objective == "gaussian" else sides
    reached = np.abs(truth - middle) / np.maximum(half, 1e-30)
    return np.nanquantile(reached.swapaxes(0, 1).reshape(truth.shape[1], -1), 0.8, axis=1)


def _verdict(
    shares: Mapping[str, np.ndarray], errors: Mapping[str, np.ndarray], base: str,
    options: RegressorOptions, *, is_own: bool,
) -> str:  # fmt: skip
    """What predicts, what the nets add, and whether the location matters, in one line."""
    kind = "own net" if is_own else "SMoE net"
    used = [name for name, share in shares.items() if share.any()]
    num_plain = len(used) - ("net" in used)
    members = [f"the {kind}"] * ("net" in used) + ["the plain net" if num_plain == 1 else f"{num_plain} plain nets"]
    of_what = " and ".join(members[: len(members) if num_plain else 1])
    of_what = of_what if len(used) == 1 else f"the mean of {of_what}"
    total = float(np.sum([share.mean() for share in shares.values()]))
    text = f"{base}, corrected by {total:.2f} of {of_what}, predicts" if used else f"{base} predicts"
    if not shares:
        return text
    labels = {"net": kind, "plain": "plain net", "mean": "mean of all nets"}
    what = {"mse": "squared error", "mae": "absolute error", "gaussian": "CRPS", "quantiles": "pinball loss"}
    gains = [f"the {labels[name]} {_gain(errors, 'base', name)}" for name in labels if name in errors]
    text += f"; {what[options.objective]} in the validation period beside {base}: {', '.join(gains)}"
    if "plain" in shares and not is_own:
        gain = _gain(errors, "plain", "net")
        text += f"; the SMoE net beside the plain net, whose filters are the same everywhere: {gain}"
    return text


def _gain(errors: Mapping[str, np.ndarray], before: str, after: str) -> str:
    """How much less of an objective a net has than another, with the standard deviation over blocks of times."""
    # Of an error of nothing there is nothing to remove.
    scale = np.nanmean(errors[before], axis=0) + 1e-9 * np.nanmean(errors[after], axis=0) + 1e-300
    removed = np.nanmean((errors[before] - errors[after]) / scale, axis=1, keepdims=True)
    mean, spread = 100.0 * float(np.nanmean(removed)), 100.0 * float(bootstrap_spread(removed, mean=True)[0])
    return f"{abs(mean):.1f} % ± {spread:.1f} % {'less' if mean > 0 else 'more'}" if abs(mean) >= 0.05 else "as much"
