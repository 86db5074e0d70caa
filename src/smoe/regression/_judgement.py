"""What nets add to the simple model that they correct, on the validation part, and what predicts in the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from smoe.regression._fitted import Kept, run_net
from smoe.regression._ladder import GridLadder
from smoe.regression._ladder_fit import FittedLadders
from smoe.regression._nets import Regression
from smoe.regression._options import SIMPLE, RegressorOptions
from smoe.regression._prediction import output_values
from smoe.regression._preparation import GridSamples, Prepared
from smoe.regression._scores import bootstrap_spread, weighted_means
from smoe.regression._training import normal_quantiles, objective_errors, start_map

_BATCH = 32
_SHARES = tuple(number / 10 for number in range(11))
# Share of the objective of the simple model that a net must remove in the validation part to be used.
_LEAST_GAIN = 0.003
# Bytes of the predictions that nets are judged by.
_MOST_BYTES = 1 << 29
# Pixels whose errors show how these are distributed.
_MOST_PIXELS = 300


@dataclass(frozen=True)
class BaseFields:
    """A simple model's predictions at times that it was not fitted to.

    Attributes:
        name: The simple model.
        train: Predictions of the training samples, `(N, K, H, W)`.
        validation: Predictions of the validation samples.
        spread: Standard deviation of the errors of both, `(K, H, W)`.
        scale: The same over all pixels, `(K,)`.
        deviations: Target less prediction in units of the spread, at some pixels, `(M, K)`.
    """

    name: str
    train: np.ndarray
    validation: np.ndarray
    spread: np.ndarray
    scale: np.ndarray
    deviations: np.ndarray

    @classmethod
    def of(cls, ladders: FittedLadders, prepared: Prepared, is_dynamic: np.ndarray, name: str) -> BaseFields:
        """Predicts: each block of the training by the ladder that has not seen it."""
        shape = prepared.statistics.target_mask.shape
        found = {}
        squares, counts = np.zeros(shape), np.zeros(shape)
        pixels = np.arange(0, shape[1] * shape[2], max(1, shape[1] * shape[2] // _MOST_PIXELS))
        kept = []
        for split in ("train", "validation"):
            samples = prepared.splits[split]
            found[split] = _empty_like(samples.targets.values, f"{name} {split}", (len(samples), *shape))
            blocks = ladders.block if split == "train" else np.full(len(samples), len(ladders.blocks))
            for block, ladder in enumerate([*ladders.blocks, ladders.train]):
                grid_ladder = GridLadder(ladder, prepared.statistics, is_dynamic)
                of_block = np.flatnonzero(blocks == block)
                for first in range(0, len(of_block), _BATCH):
                    rows = of_block[first : first + _BATCH]
                    before, after = samples.physical(rows)
                    predicted = grid_ladder.predict(before, *samples.times(rows), names=[name])[name]
                    found[split][rows] = predicted
                    errors = predicted - after
                    kept.append(errors.reshape(*errors.shape[:2], -1)[:, :, pixels])
                    squares += np.nansum(np.square(errors, dtype=np.float64), axis=0)
                    counts += (~np.isnan(errors)).sum(axis=0)
        spread = np.sqrt(squares / np.maximum(counts, 1))
        scale = np.sqrt(squares.sum(axis=(1, 2)) / np.maximum(counts.sum(axis=(1, 2)), 1))
        scale = np.maximum(scale, 1e-30)
        spread = np.maximum(spread, 1e-3 * scale[:, None, None])
        deviations = -np.concatenate(kept) / spread.reshape(shape[0], -1)[:, pixels]
        deviations = deviations.transpose(0, 2, 1).reshape(-1, shape[0])
        return cls(name, found["train"], found["validation"], spread, scale, deviations)

    def begin(self, net: Regression, options: RegressorOptions) -> None:
        """Makes a net start at this prediction."""
        start = start_map(options, self.spread / self.scale[:, None, None])
        net.start.copy_(torch.from_numpy(start))
        net.scale.copy_(torch.from_numpy(self.scale))


def _empty_like(values: np.ndarray, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """An array in memory, or in a file beside that of the values where these are in one."""
    if not isinstance(values, np.memmap) or values.filename is None:
        return np.empty(shape, np.float32)
    return np.memmap(Path(values.filename).parent / f"{name}.f32", np.float32, "w+", shape=shape)


@dataclass(frozen=True)
class Judgement:
    """What predicts, the objective of each net as a share of the base's, and both in words."""

    kept: Kept
    validation: Mapping[str, float]
    verdict: str


def judge(
    nets: Mapping[str, Regression],
    base: BaseFields,
    simple: BaseFields,
    validation: GridSamples,
    ladder: GridLadder,
    weights: np.ndarray,
    options: RegressorOptions,
    *,
    is_own: bool,
) -> Judgement:
    """Chooses the share of each net, calibrates spreads and quantiles, and says what predicts."""
    # Every second or third sample of a validation part that memory may not hold.
    step = -(-base.validation.nbytes * options.outputs_per_target // _MOST_BYTES)
    rows = np.arange(0, len(validation), max(step, 1))
    validation = validation.take(rows)
    base, simple = (replace(each, validation=np.asarray(each.validation[rows])) for each in (base, simple))
    truth = np.concatenate([validation.physical(rows)[1] for rows in _batches(len(validation))])
    is_net = options.net not in SIMPLE or is_own
    errors: dict[str, np.ndarray] = {}
    start = nets["net"].start.numpy()[None].repeat(len(truth), 0)
    errors["base"] = _errors(start, base, nets["net"], truth, weights, options)
    for name, net in nets.items() if is_net else ():
        of_net = simple if name == "alone" else base
        outputs = _outputs(net, of_net, validation, ladder, is_own=is_own)
        start = net.start.numpy()
        keeps_all = name == "alone" or (name == "net" and options.keep == "smoe")
        tried = {
            share: _errors(
                start + (share * (outputs - start) if share else np.zeros_like(outputs)),
                of_net,
                net,
                truth,
                weights,
                options,
            )
            for share in ((1.0,) if keeps_all else _SHARES)
        }
        of_shares = np.stack([np.nanmean(each, axis=0) for each in tried.values()])
        best = np.asarray(list(tried))[np.argmin(np.where(np.isfinite(of_shares), of_shares, np.inf), axis=0)]
        errors[name] = np.stack([tried[share][:, k] for k, share in enumerate(best)], axis=1)
        net.share.copy_(torch.from_numpy(np.repeat(best, options.outputs_per_target))[:, None, None])
    # Without an error there is nothing to remove.
    means = {name: np.nanmean(each, axis=0) + 1e-300 for name, each in errors.items()}
    ratios = {name: float(np.mean(each / means["base"])) for name, each in means.items()}
    kept: Kept = "ladder"
    if is_net and options.keep == "smoe":
        kept = "net"
    elif is_net:
        known: tuple[Kept, ...] = ("net", "plain", "alone")
        for name in known:
            # Not where one of several targets is predicted worse.
            is_safe = name in means and bool((means[name] <= 1.001 * means["base"]).all())
            if is_safe and ratios[name] < min(1.0 - _LEAST_GAIN, ratios.get(kept, np.inf)):
                kept = name
    if kept == "ladder":
        nets["net"].share.zero_()
    for name, net in nets.items():
        _calibrate(net, simple if name == "alone" else base, truth, validation, ladder, options, is_own=is_own)
    return Judgement(kept, ratios, _verdict(kept, ratios, errors, base.name, options, is_net=is_net, is_own=is_own))


def _batches(count: int) -> list[np.ndarray]:
    return [np.arange(first, min(first + _BATCH, count)) for first in range(0, count, _BATCH)]


def _outputs(
    net: Regression, base: BaseFields, validation: GridSamples, ladder: GridLadder, *, is_own: bool
) -> np.ndarray:
    found = []
    for rows in _batches(len(validation)):
        before, times = validation.physical(rows)[0], validation.times(rows)
        found.append(run_net(net, ladder.net_inputs(before, base.validation[rows], *times, is_own=is_own)))
    return np.concatenate(found)


def _errors(
    outputs: np.ndarray, base: BaseFields, net: Regression, truth: np.ndarray, weights: np.ndarray,
    options: RegressorOptions,
) -> np.ndarray:  # fmt: skip
    """Objective of each sample and target, `(N, K)`."""
    values = output_values(outputs, base.validation, net, options)
    return weighted_means(objective_errors(values, truth, options), truth, weights)


def _calibrate(
    net: Regression, base: BaseFields, truth: np.ndarray, validation: GridSamples, ladder: GridLadder,
    options: RegressorOptions, *, is_own: bool,
) -> None:  # fmt: skip
    """Makes intervals wide enough in the validation part, and at all times that the base was not fitted to.

    What a net changes is known in the validation part only.
    """
    if options.objective not in ("gaussian", "quantiles"):
        return
    values, count = (
        output_values(_outputs(net, base, validation, ladder, is_own=is_own), base.validation, net, options),
        options.outputs_per_target,
    )
    start = net.start.numpy()[None].repeat(len(truth), 0)
    before = output_values(start, base.validation, net, options)
    with torch.no_grad():
        for k in range(truth.shape[1]):
            if options.objective == "gaussian":
                normal = float(normal_quantiles([0.9])[0])
                usual = float(np.nanquantile(np.abs(base.deviations[:, k]), 0.8)) / normal
                after, first = (
                    float(np.nanquantile(np.abs(truth[:, k] - each[:, k, 0]) / np.maximum(each[:, k, 1], 1e-30), 0.8))
                    for each in (values, before)
                )
                factor = max(after / normal, usual * (after + 1e-30) / (first + 1e-30))
                net.start[k * count + 1] += float(np.log(np.clip(factor, 0.2, 5.0)))
                continue
            spread = base.spread[k] / base.scale[k]
            normal = normal_quantiles(options.quantiles)
            for number, level in enumerate(options.quantiles):
                after, first = (
                    float(np.nanquantile((truth[:, k] - each[:, k, number]) / base.spread[k], level))
                    for each in (values, before)
                )
                usual = float(np.nanquantile(base.deviations[:, k], level)) - float(normal[number]) + after - first
                move = min(after, usual) if level < 0.5 else max(after, usual) if level > 0.5 else usual
                net.start[k * count + number] += torch.from_numpy(move * spread).float()


def _verdict(
    kept: Kept, ratios: Mapping[str, float], errors: Mapping[str, np.ndarray], base: str, options: RegressorOptions,
    *, is_net: bool, is_own: bool,
) -> str:  # fmt: skip
    """What predicts and what the nets add, in one line."""
    kind = "own net" if is_own else "SMoE net"
    name = {"ladder": base, "net": f"{kind} on {base}", "plain": f"plain net on {base}", "alone": "plain net alone"}
    text = f"{name[kept]} predicts"
    if not is_net:
        return text
    gains = [
        f"the {label} removes {100.0 * (1.0 - ratios[each]):.1f} % ± {100.0 * _paired(errors, each):.1f} %"
        if ratios[each] != 1.0
        else f"the {label} removes nothing"
        for each, label in (("net", kind), ("plain", "plain net"), ("alone", "plain net alone"))
        if each in ratios
    ]
    what = {"mse": "squared error", "mae": "absolute error", "gaussian": "CRPS", "quantiles": "pinball loss"}
    return f"{text}; of the {what[options.objective]} of {base} in the validation period " + ", ".join(gains)


def _paired(errors: Mapping[str, np.ndarray], name: str) -> float:
    """Standard deviation, over blocks of times, of the share of the base's objective that a net removes."""
    base = np.nanmean(errors["base"], axis=0) + 1e-300
    difference = np.nanmean((errors[name] - errors["base"]) / base, axis=1, keepdims=True)
    return float(bootstrap_spread(difference, mean=True)[0])
