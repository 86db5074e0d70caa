"""Errors at each pixel over a split, and the simplest prediction: that nothing changes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from smoe.experiments.open_run import OpenRun
from smoe.experiments.report_parts import ErrorMap, Places
from smoe.metrics import MetricSums
from smoe.training.batches import OrderedBatches, load_batches, num_samples

UNCHANGED = "input unchanged"


def measure_errors(
    batches: Iterable[tuple[Tensor, Tensor]], places: Places | None, targets: Sequence[tuple[str, str]]
) -> tuple[ErrorMap, ...]:
    """Returns the root mean squared error of each target at each pixel over all samples.

    Args:
        batches: Predictions and truths, `(B, K, *grid)`. A truth that is NaN does not count.
        places: Where the pixels lie; None if they are only numbered.
        targets: Name and units of each target.

    Returns:
        A map for each target; none if predictions and truths are not fields on the grid.
    """
    squared: Tensor | None = None
    counts: Tensor | None = None
    grid: tuple[int, ...] = ()
    for prediction, truth in batches:
        if prediction.shape != truth.shape or truth.ndim < 3 or not truth.is_floating_point():
            return ()
        if squared is None or counts is None:
            grid = tuple(truth.shape[2:])
            if len(grid) > 3 or (places is not None and places.num_pixels != int(np.prod(grid))):
                return ()
            squared = torch.zeros(truth.shape[1], int(np.prod(grid)), dtype=torch.float64)
            counts = torch.zeros_like(squared)
        error = (prediction.double() - truth.double()).square().cpu().flatten(2)
        is_known = ~error.isnan()
        squared += error.nan_to_num(0.0).sum(dim=0)
        counts += is_known.sum(dim=0)
    if squared is None or counts is None:
        return ()
    roots = (squared / counts).sqrt().numpy()
    names = list(targets) if len(targets) == len(roots) else [(f"target {number}", "") for number in range(len(roots))]
    return tuple(ErrorMap(f"{name}, RMSE", units, root) for (name, units), root in zip(names, roots, strict=True))


def read_split(run: OpenRun, split: str) -> tuple[dict[str, float] | None, str, Tensor]:
    """Reads a split once.

    Args:
        run: Run, opened with the split.
        split: Name of the split, such as `test`.

    Returns:
        Metrics of the prediction that nothing changes, None where inputs and targets differ in shape; the SHA-256 of
        all inputs and targets; and the first input, `(1, ...)`.
    """
    task, plan = run.task, run.recipe.training
    samples = task.splits[split]
    batches = OrderedBatches(num_samples(samples), plan.evaluation_batch_size, 0, 1)
    # One for inputs and one for targets: the result must not depend on the size of the batches.
    digests = (hashlib.sha256(), hashlib.sha256())
    sums: MetricSums | None = MetricSums(task.metrics)
    first: Tensor | None = None
    for input, target in load_batches(samples, batches, task.collate, torch.device("cpu"), plan.num_workers):
        for digest, part in zip(digests, (input, target), strict=True):
            if first is None:
                digest.update(f"{part.dtype} {tuple(part.shape[1:])}".encode())
            digest.update(part.contiguous().numpy().tobytes())
        first = input[:1] if first is None else first
        if sums is not None and input.shape == target.shape:
            sums.add(input, target)
        else:
            sums = None
    if first is None:
        raise ValueError(f"the {split} split of {run.directory.path} has no samples")
    both = hashlib.sha256(digests[0].digest() + digests[1].digest()).hexdigest()
    return None if sums is None else sums.values(), both, first
