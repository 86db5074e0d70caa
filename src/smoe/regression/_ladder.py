"""Simple models of each pixel, the rungs of a ladder: climatology, damped anomaly, regressions, and their combination.

Every regression is a ridge regression of the target at a pixel on columns of time (harmonics of the year and the day, a
trend) and on anomalies of the inputs there, around it and in the main patterns of the whole area. What is chosen
(harmonics, columns, penalties, weights) is chosen by errors on times that were not fitted: blocks of the training
period, each by a fit to the others, and the validation period. Boosted trees stand beside them for comparison.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from smoe.regression._options import RegressorOptions
from smoe.regression._preparation import GridSamples, Statistics

DAYS_OF_YEAR = {"noleap": 365.0, "360_day": 360.0, "all_leap": 366.0, "julian": 365.25}
# Most values of the columns of the pixels that are worked on at once.
_CHUNK_VALUES = 8_000_000

CLIMATOLOGY, DAMPED, LINEAR, RIDGE = "climatology", "damped anomaly", "linear regression", "ridge regression"
PERSISTENCE, MEAN_ERROR = "persistence", "input + map of mean errors"
COMBINATION = "combination of simple models"


@dataclass(frozen=True)
class TimeBasis:
    """Columns of time: a constant, harmonics of the year and of the day, their products, and a trend."""

    year: int = 0  # harmonics of the year
    day: int = 0  # harmonics of the day
    trend: bool = False  # whether a straight line in time is among them
    calendar: str = "standard"  # calendar of the times
    origin: float = 0.0  # second at which the line is zero
    scale: float = 1.0  # seconds in which it rises by one

    def phases(self, seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Phase of the year and of the day, radians."""
        days = np.asarray(seconds, np.float64) / 86400.0
        return 2.0 * np.pi * days / DAYS_OF_YEAR.get(self.calendar, 365.2425), 2.0 * np.pi * days

    def __call__(self, seconds: np.ndarray) -> np.ndarray:
        """The columns of some times, `(N, p)`."""
        of_year, of_day = self.phases(seconds)
        year = [wave(n * of_year) for n in range(1, self.year + 1) for wave in (np.cos, np.sin)]
        day = [wave(n * of_day) for n in range(1, self.day + 1) for wave in (np.cos, np.sin)]
        both = [one * other for one in year[:4] for other in day[:4]]
        line = [np.clip((np.asarray(seconds, np.float64) - self.origin) / self.scale, -1.0, 1.0)] if self.trend else []
        return np.stack([np.ones(len(seconds)), *line, *year, *day, *both], axis=1)

    @property
    def size(self) -> int:
        return self(np.zeros(1)).shape[1]

    @property
    def has_seasons(self) -> bool:
        return bool(self.year or self.day or self.trend)

    @property
    def description(self) -> str:
        """In words, such as `2 harmonics of the year, trend`."""
        parts = [f"{n} harmonic{'s' * (n > 1)} of the {of}" for n, of in ((self.year, "year"), (self.day, "day")) if n]
        return ", ".join(parts + ["trend"] * self.trend) or "mean"


@dataclass(frozen=True)
class Columns:
    """Which columns a regression has beside those of time."""

    channels: tuple[int, ...] = ()  # inputs at the pixel
    ring_channels: tuple[int, ...] = ()  # inputs around it
    rings: tuple[int, ...] = ()  # distances of the eight pixels around it
    components: int = 0  # number of patterns of the whole area
    seasonal: tuple[int, ...] = ()  # inputs whose product with the seasons is a column
    has_lead: bool = False  # whether the lead time, and its products with the inputs at the pixel, are columns


@dataclass(frozen=True)
class Anomalies:
    """Departure of the inputs from their climatology, in standard deviations of each pixel."""

    basis: TimeBasis  # columns of time
    climatology: np.ndarray  # coefficients, `(p, C, P)`
    scale: np.ndarray  # standard deviations, `(C, P)`
    area: np.ndarray  # share of each pixel in the mean over the area, `(C, P)`
    range: np.ndarray  # lowest and highest mean over the area that samples as those that were fitted may have, `(2, C)`

    def __call__(self, inputs: np.ndarray, starts: np.ndarray, pixels: np.ndarray | slice) -> np.ndarray:
        """Of inputs `(N, C, n)` at some pixels, float32; 0 where a value is missing."""
        expected = np.tensordot(self.basis(starts), self.climatology[:, :, pixels], axes=1)
        return np.nan_to_num((inputs - expected) / self.scale[:, pixels]).astype(np.float32)

    def within_range(
        self, inputs: np.ndarray, starts: np.ndarray, channels: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Anomalies of whole fields, less how far the level of some channels has moved; and it, `(N, C)`.

        Regressions would damp a level that has moved. It is the mean over the area where that is beyond all that is
        likely, drawn to zero as far as the likely range reaches (a garrote): nothing at its border, nearly all far
        beyond it. With a trend, which may go on or end after the times that were fitted, it is at least the part that
        is expected of a drift as large as the trend's beside weather.
        """
        found = self(inputs, starts, slice(None))
        means = np.einsum("ncp,cp->nc", found, self.area)
        moved = means * (1.0 - np.minimum(self._likely_part(means), self._weather_part(starts)))
        if channels is not None:
            moved = moved * np.isin(np.arange(moved.shape[1]), channels)
        return found - moved[:, :, None].astype(np.float32), moved

    def familiarity(self, inputs: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """1 for whole fields whose levels were likely from what was seen, and less beyond, as above, `(N,)`."""
        means = np.einsum("ncp,cp->nc", self(inputs, starts, slice(None)), self.area)
        return self._likely_part(means).min(axis=1)

    def _weather_part(self, starts: np.ndarray) -> np.ndarray:
        """Share of means over the area that is weather, not where a trend may have led since the fit, `(N, C)`."""
        if not self.basis.trend:
            return np.ones((len(starts), len(self.area)))
        line = (np.asarray(starts, np.float64) - self.basis.origin) / self.basis.scale
        slope = (self.climatology[1] / self.scale * self.area).sum(axis=1)
        drift = np.square((line - np.clip(line, -1.0, 1.0))[:, None] * slope)
        # The likely range is about three standard deviations to either side.
        weather = np.square(np.ptp(self.range, axis=0) / 6.0) + 1e-30
        return weather / (weather + drift)

    def _likely_part(self, means: np.ndarray) -> np.ndarray:
        share = np.abs(np.clip(means, *self.range)) / np.maximum(np.abs(means), 1e-30)
        return np.where(means == 0.0, 1.0, np.square(np.minimum(share, 1.0)))


def pixel_chunks(num_pixels: int, values_of_one: int) -> Iterator[np.ndarray]:
    step = max(1, _CHUNK_VALUES // max(values_of_one, 1))
    for first in range(0, num_pixels, step):
        yield np.arange(first, min(first + step, num_pixels))


@dataclass(frozen=True)
class Patterns:
    """Main patterns of the inputs over some pixels of the area: empirical orthogonal functions."""

    pixels: np.ndarray  # the pixels, `(S,)`
    vectors: np.ndarray  # patterns, of unit spread in the training, `(m, C * S)`

    def __call__(self, anomalies: np.ndarray) -> np.ndarray:
        """Components `(N, m)` of anomalies at the pixels, `(N, C, S)`."""
        return anomalies.reshape(len(anomalies), -1) @ self.vectors.T


@dataclass(frozen=True)
class Design:
    """The columns of regressions, at any pixels; their neighbours are those of `ring_neighbours`."""

    anomalies: Anomalies
    columns: Columns
    neighbours: np.ndarray
    patterns: Patterns

    def groups(self) -> list[tuple[str, int]]:
        """Kind of each column and what it belongs to: a channel, a ring, a pattern."""
        columns, basis = self.columns, self.anomalies.basis
        num_seasons = 2 * (bool(basis.year) + bool(basis.day))
        found = [("time", n) for n in range(basis.size)] + [("pixel", c) for c in columns.channels]
        found += [("ring", ring) for ring in columns.rings for _ in range(8 * len(columns.ring_channels))]
        found += [("pattern", n) for n in range(columns.components)]
        found += [("season", c) for c in columns.seasonal for _ in range(num_seasons)]
        return found + ([("lead", 0)] + [("slope", c) for c in columns.channels]) * columns.has_lead

    def of_times(self, valid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Columns of time `(N, p)`, and the seasons that are multiplied with inputs, `(N, s)`."""
        basis = self.anomalies.basis
        of_year, of_day = basis.phases(valid)
        seasons = [wave(phase) for phase, n in ((of_year, basis.year), (of_day, basis.day)) if n
                   for wave in (np.cos, np.sin)]  # fmt: skip
        return basis(valid), np.stack(seasons, 1) if seasons else np.zeros((len(valid), 0))

    def __call__(
        self, pixels: np.ndarray, anomalies: np.ndarray, where: np.ndarray, components: np.ndarray,
        times: tuple[np.ndarray, np.ndarray], lead: np.ndarray | None,
    ) -> np.ndarray:  # fmt: skip
        """Columns `(n, N, p)` of n pixels."""
        columns, (time, seasons) = self.columns, times
        num, count = len(time), len(pixels)
        here = anomalies[:, :, where[pixels]]
        parts = [np.broadcast_to(time, (count, *time.shape)), here[:, columns.channels].transpose(2, 0, 1)]
        around = self._around(pixels)
        if around.shape[1]:
            ring = anomalies[:, columns.ring_channels][:, :, where[around]]
            # Rings are the slowest, so that a ring's columns lie together.
            parts.append(ring.transpose(2, 0, 3, 1).reshape(count, num, -1))
        if columns.components:
            parts.append(np.broadcast_to(components[:, : columns.components], (count, num, columns.components)))
        parts += [here[:, channel].T[:, :, None] * seasons for channel in columns.seasonal]
        if columns.has_lead and lead is not None:
            parts.append(np.broadcast_to(lead[:, None], (count, num, 1)))
            parts.append((here[:, columns.channels] * lead[:, None, None]).transpose(2, 0, 1))
        return np.concatenate(parts, axis=2, dtype=np.float64)

    def _around(self, pixels: np.ndarray) -> np.ndarray:
        return self.neighbours[pixels, 1 : 1 + 8 * len(self.columns.rings)]

    def needed(self, pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Pixels whose anomalies are needed, and the place of each pixel of the grid among them."""
        found = np.unique(np.concatenate([pixels, self._around(pixels).ravel()]))
        found = found[found >= 0]
        where = np.full(len(self.neighbours) + 1, len(found), np.int64)
        where[found] = np.arange(len(found))
        return found, where


@dataclass(frozen=True)
class Ladder:
    """Simple models, fitted."""

    statistics: Statistics  # statistics of the training part
    is_dynamic: np.ndarray  # inputs that depend on time, `(C,)`; regressions have these only
    design: Design  # columns of the regressions
    target_mean: np.ndarray  # mean of each target and pixel, `(K, P)`
    target_scale: np.ndarray  # standard deviation of the same
    passed: np.ndarray  # input whose level is passed on to each target where it has moved, or -1, `(K,)`
    coefficients: dict[str, np.ndarray]  # coefficients of all columns by the names of the regressions, `(p, K, P)`
    mean_error: np.ndarray  # mean of target less reference; NaN for targets without one, `(K, P)`
    # weight of each rung in the combination, of each target, `(K,)`
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    # standard deviation of the errors at times that were not fitted, of each rung, `(K, P)`
    spreads: dict[str, np.ndarray] = field(default_factory=dict)
    # their root mean square, of each rung and target, `(K,)`
    errors: dict[str, np.ndarray] = field(default_factory=dict)
    best: str = CLIMATOLOGY  # the rung that was best, or the combination

    @property
    def rungs(self) -> list[str]:
        """Names of all rungs, the combination too."""
        simple = [PERSISTENCE, MEAN_ERROR] if np.isfinite(self.mean_error).any(axis=1).all() else []
        return [*simple, *self.coefficients, *([COMBINATION] if self.weights else [])]

    def describe(self) -> str:
        columns = self.design.columns
        around = f"pixels around at the distances {', '.join(map(str, columns.rings))}" if columns.rings else ""
        patterns = f"{columns.components} patterns of the area" if columns.components else ""
        parts = [self.design.anomalies.basis.description, around, patterns, "seasonal slopes" * bool(columns.seasonal)]
        best = self.best
        if self.weights:
            best = " + ".join(f"{float(weight.mean()):.2f} {name}" for name, weight in self.weights.items())
        return f"simple models: {', '.join(filter(None, parts))}; the best on times that were not fitted: {best}"

    def predict(
        self, inputs: np.ndarray, starts: np.ndarray, valid: np.ndarray, lead: np.ndarray | None = None,
        names: Sequence[str] | None = None,
    ) -> dict[str, np.ndarray]:  # fmt: skip
        """Predictions of rungs for inputs `(N, C, H, W)`, of all if none are named, float32, `(N, K, H, W)`."""
        names = self.rungs if names is None else names
        needed = {name for name in names if name != COMBINATION}
        needed |= set(self.weights) if COMBINATION in names else set()
        references = self.statistics.references(inputs)
        references = references.reshape(*references.shape[:2], -1)
        found = {PERSISTENCE: references, MEAN_ERROR: references + self.mean_error}
        regressions = [name for name in self.coefficients if name in needed]
        level = np.zeros(1, np.float32)
        if regressions:
            output, level = self._regress(self._dynamic(inputs), starts, valid, lead, regressions)
            found |= {name: each if name == CLIMATOLOGY else each + level for name, each in output.items()}
        if COMBINATION in names:
            found[COMBINATION] = np.asarray(sum(weight[:, None] * found[name] for name, weight in self.weights.items()))
        shape = (len(inputs), len(self.target_mean), *inputs.shape[2:])
        return {name: np.asarray(found[name], np.float32).reshape(shape) for name in names}

    def _dynamic(self, inputs: np.ndarray) -> np.ndarray:
        """Inputs that depend on time, pixels flat."""
        dynamic = inputs[:, self.is_dynamic] if not self.is_dynamic.all() else inputs
        return dynamic.reshape(*dynamic.shape[:2], -1)

    def familiarity(self, inputs: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """How much of a net's share is left where the level of an input is beyond all that nets have seen, `(N,)`.

        Of forecasts, which pass the level on; of other targets a regression knows no more than nets.
        """
        if (self.passed < 0).any():
            return np.ones(len(inputs))
        return self.design.anomalies.familiarity(self._dynamic(inputs), starts)

    def level(self, moved: np.ndarray) -> np.ndarray:
        """How far each target moves with the level of its input, `(N, K, P)`, given that of all channels."""
        of_targets = np.where(self.passed >= 0, moved[:, self.passed], 0.0).astype(np.float32)
        return of_targets[:, :, None] * self.design.anomalies.scale[self.passed]

    def _regress(
        self, inputs: np.ndarray, starts: np.ndarray, valid: np.ndarray, lead: np.ndarray | None, names: Sequence[str]
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Regressions, and the level beyond all that was seen, which a target that continues an input keeps."""
        design = self.design
        num_targets, num_pixels = self.target_mean.shape
        # A level that no target continues is extrapolated by the regressions, unless all targets keep their own: what
        # goes with it in other inputs would count twice.
        channels = self.passed if (self.passed < 0).any() else None
        anomalies, moved = design.anomalies.within_range(inputs, starts, channels)
        level = self.level(moved)
        components = design.patterns(anomalies[:, :, design.patterns.pixels])
        anomalies = np.concatenate([anomalies, np.zeros_like(anomalies[:, :, :1])], axis=2)
        times, where = design.of_times(valid), np.append(np.arange(num_pixels), num_pixels)
        output = {name: np.empty((len(inputs), num_targets, num_pixels), np.float32) for name in names}
        for pixels in pixel_chunks(num_pixels, len(inputs) * self.coefficients[names[0]].shape[0]):
            columns = design(pixels, anomalies, where, components, times, lead)
            for name in names:
                found = columns @ self.coefficients[name][:, :, pixels].transpose(2, 0, 1)
                scaled = found.transpose(1, 2, 0) * self.target_scale[:, pixels] + self.target_mean[:, pixels]
                output[name][:, :, pixels] = scaled
        return output, level

    def net_inputs(
        self, inputs: np.ndarray, base: np.ndarray, starts: np.ndarray, valid: np.ndarray, lead: np.ndarray | None,
        *, is_own: bool = False,
    ) -> np.ndarray:  # fmt: skip
        """Anomalies of the inputs, the base, the time and the lead time, `(N, C', H, W)`, float32."""
        grid = inputs.shape[2:]
        channels = self.statistics.normalise_inputs(inputs) if not self.is_dynamic.all() else np.empty_like(inputs)
        anomalies, moved = self.design.anomalies.within_range(self._dynamic(inputs), starts)
        channels[:, self.is_dynamic] = anomalies.reshape(*anomalies.shape[:2], *grid)
        parts = [channels]
        numbers = [] if lead is None else [lead[:, None]]
        if not is_own:
            mean, scale = (each.reshape(-1, *grid) for each in (self.target_mean, self.target_scale))
            base = base - self.level(moved).reshape(base.shape)
            # Without a target there is no scale either.
            parts.append(np.where(self.statistics.target_mask, np.nan_to_num((base - mean) / scale), 0.0))
            numbers.insert(0, self.design.of_times(valid)[1])
        parts += [np.broadcast_to(each[:, :, None, None], (*each.shape, *grid)) for each in numbers]
        return np.concatenate(parts, axis=1, dtype=np.float32)


@dataclass(frozen=True)
class Spread:
    """How errors are distributed at times that were not fitted."""

    pixels: np.ndarray  # standard deviation at each pixel, `(K, H, W)`
    seasons: np.ndarray  # factor of it in each month, or in each three hours where there is no year, `(S, K)`
    # numbers that the objective asks for, in units of both, `(K, n)`: quantiles, or a factor of the spread
    offsets: np.ndarray
    widen: np.ndarray  # factor of the width of intervals that nets have changed, `(K,)`
    basis: TimeBasis  # columns of time

    @staticmethod
    def parts(valid: np.ndarray, basis: TimeBasis) -> np.ndarray:
        """Number of the season of each time."""
        year, day = (phase / (2.0 * np.pi) % 1.0 for phase in basis.phases(valid))
        found = year * 12 if basis.year else day * 8 if basis.day else np.zeros(len(valid))
        return found.astype(np.int64)

    def numbers(
        self, values: np.ndarray, valid: np.ndarray | None, options: RegressorOptions, pixels: np.ndarray | None = None
    ) -> np.ndarray:
        """Predictions `(N, K, H, W)` with the numbers that the objective asks for, `(N, K, n, H, W)`."""
        if options.outputs_per_target == 1:
            return values[:, :, None]
        spread = (self.pixels if pixels is None else pixels)[:, None] * self.offsets[:, :, None, None]
        spread = np.broadcast_to(spread, (len(values), *spread.shape)).copy()
        if valid is not None:
            parts = np.minimum(self.parts(valid, self.basis), len(self.seasons) - 1)
            spread *= self.seasons[parts][:, :, None, None, None]
        if options.objective == "gaussian":
            spread[:, :, 0] = values
            return spread
        return values[:, :, None] + spread


def num_channels(basis: TimeBasis, num_inputs: int, num_targets: int, *, has_lead: bool, is_own: bool) -> int:
    """Channels that nets see: inputs, base, sine and cosine of the year and the day where these count, lead time."""
    extra = 0 if is_own else num_targets + 2 * (bool(basis.year) + bool(basis.day))
    return num_inputs + extra + has_lead


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
