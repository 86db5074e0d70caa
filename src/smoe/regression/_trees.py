"""LightGBM beside the nets, if it is installed: boosted trees of the same data, pooled over pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from smoe.regression._ladder import TimeBasis
from smoe.regression._preparation import GridSamples, Statistics

# Pixels and times that trees are fitted to, and those that stop them.
_NUM_TRAIN, _NUM_VALIDATION = 60_000, 20_000
_BATCH, _NUM_TREES = 64, 200
_SETTINGS = {"objective": "l2", "num_leaves": 63, "learning_rate": 0.1, "min_data_in_leaf": 50, "verbose": -1}


@dataclass(frozen=True)
class Trees:
    """Trees of each target: what it adds to the input that it continues."""

    boosters: list[Any]
    spread: np.ndarray  # standard deviation of the errors on validation, `(K, H, W)`
    neighbours: np.ndarray  # flat index of each pixel and of those around it, `(P, 9)`; -1 beyond the border
    statistics: Statistics
    calendar: str

    def predict(self, inputs: np.ndarray, valid: np.ndarray, lead: np.ndarray | None) -> np.ndarray:
        """Predictions for inputs `(N, C, H, W)`, `(N, K, H, W)`."""
        found = self.statistics.references(inputs)
        pixels = np.flatnonzero(self.statistics.target_mask.any(axis=0))
        rows, columns = np.divmod(pixels, inputs.shape[3])
        for number in range(len(inputs)):
            features = self.columns(inputs, valid, lead, np.full(len(pixels), number), pixels)
            for target, booster in enumerate(self.boosters):
                found[number, target, rows, columns] += booster.predict(features, num_threads=torch.get_num_threads())
        return found

    def columns(
        self, inputs: np.ndarray, valid: np.ndarray, lead: np.ndarray | None, times: np.ndarray, pixels: np.ndarray
    ) -> np.ndarray:
        """Inputs around some pixels at some times, the season, the hour and the place, `(n, p)`."""
        flat = inputs.reshape(*inputs.shape[:2], -1)
        around = self.neighbours[pixels]
        values = np.where(around[:, None] < 0, np.nan, flat[times[:, None, None], np.arange(flat.shape[1])[:, None],
                                                            around[:, None]])  # fmt: skip
        waves = [wave(n * phase) for phase in TimeBasis(calendar=self.calendar).phases(valid) for n in (1, 2)
                 for wave in (np.sin, np.cos)]  # fmt: skip
        numbers = [*waves, *([] if lead is None else [lead])]
        place = np.divmod(pixels, inputs.shape[3])
        return np.column_stack([values.reshape(len(pixels), -1), *(each[times] for each in numbers), *place])


def fit_trees(
    train: GridSamples, validation: GridSamples, neighbours: np.ndarray, weights: np.ndarray, seed: int
) -> Trees | None:
    """Fits trees to some pixels and times, stopped by the validation part; None if LightGBM is not installed."""
    try:
        import lightgbm  # type: ignore[import-not-found]
    except ImportError:
        return None
    statistics = train.statistics
    trees = Trees([], np.zeros(statistics.target_mask.shape, np.float32), neighbours, statistics, train.pairs.calendar)
    generator = np.random.default_rng(seed)
    pixels = np.flatnonzero(statistics.target_mask.any(axis=0))
    share = weights.reshape(-1)[pixels]
    sets = []
    for samples, count in ((train, _NUM_TRAIN), (validation, _NUM_VALIDATION)):
        times = np.sort(generator.integers(0, len(samples), count))
        chosen = generator.choice(pixels, count, p=share / share.sum())
        parts = [_part(trees, samples, times, chosen, first) for first in range(0, len(samples), _BATCH)]
        sets.append([np.concatenate(each) for each in zip(*parts, strict=True)])
    settings = {**_SETTINGS, "seed": seed, "num_threads": torch.get_num_threads()}
    (columns, values), (held_columns, held_values) = sets
    for target in range(len(trees.spread)):
        there, held = (~np.isnan(each[:, target]) for each in (values, held_values))
        data = lightgbm.Dataset(columns[there], values[there, target])
        stop = lightgbm.Dataset(held_columns[held], held_values[held, target], reference=data)
        booster = lightgbm.train(
            settings, data, _NUM_TREES, valid_sets=[stop], callbacks=[lightgbm.early_stopping(15, verbose=False)]
        )
        trees.boosters.append(booster)
        trees.spread[target] = booster.best_score["valid_0"]["l2"] ** 0.5
    return trees


def _part(
    trees: Trees, samples: GridSamples, times: np.ndarray, pixels: np.ndarray, first: int
) -> tuple[np.ndarray, np.ndarray]:
    """Columns, and targets less what they continue, of the times of a batch."""
    indices = np.arange(first, min(first + _BATCH, len(samples)))
    rows = slice(*np.searchsorted(times, (first, first + len(indices))))
    before, after = samples.physical(indices)
    _, valid, lead = samples.times(indices)
    added = (after - trees.statistics.references(before)).reshape(*after.shape[:2], -1)
    columns = trees.columns(before, valid, lead, times[rows] - first, pixels[rows])
    return columns, added[times[rows] - first, :, pixels[rows]]
