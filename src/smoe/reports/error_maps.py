"""Errors at each pixel over a split."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from smoe.reports.parts import ErrorMap, Places


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
