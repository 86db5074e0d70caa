"""Chooses and fits the rungs of a ladder, by normal equations of each pixel and block of times."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.optimize
import scipy.spatial
import scipy.special

from smoe.gridded import HorizontalGrid
from smoe.regression._ladder import (
    CLIMATOLOGY,
    COMBINATION,
    DAMPED,
    DAYS_OF_YEAR,
    LINEAR,
    MEAN_ERROR,
    PERSISTENCE,
    RIDGE,
    Anomalies,
    Columns,
    Design,
    Ladder,
    Patterns,
    TimeBasis,
    pixel_chunks,
)
from smoe.regression._preparation import GridSamples

_YEAR_HARMONICS, _DAY_HARMONICS = 4, 3
# Years from which on a trend is told from weather, and from a season that has not come round.
_FEWEST_YEARS = 10.0
# Shares of the number of samples that are added to the diagonal.
_PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
_FEW_PENALTIES = (1e-4, 1e-2, 0.3, 3.0, 100.0)
_LEAST_PENALTY, _NEVER = 1e-6, 1e9
# Times that stand for what is known before: that pixels have one regression and one spread, and these are weak. Chosen
# on 68 targets of real data that are none of the benchmark.
_PRIOR_TIMES, _PRIOR_OF_SPREAD, _PRIOR_OF_POOLED = 10.0, 6.0, 3.0
# Share of an error that more columns must remove, and the least weight of a rung in a combination.
_LEAST_GAIN, _LEAST_WEIGHT = 0.002, 0.01
# Shares in the combination that are expected without evidence, the ridge regression having the rest, and the weight of
# the validation period beside that of all times alike: flat optima over 61 targets of real data that are none of the
# benchmark. What was held out lies between times that were fitted: what follows the input is worth more than it shows.
_PRIOR, _LAST = {PERSISTENCE: 0.05, MEAN_ERROR: 0.05}, 0.35
NUM_BLOCKS = 5
RINGS = (1, 2, 4, 8)
_COMPONENTS = (3, 6)
# Most values of the columns of the pixels that choices are made on.
_CHOICE_VALUES = 12_000_000
_MOST_CHOICE_PIXELS, _MOST_PATTERN_VALUES, _MOST_RING_CHANNELS = 200, 1200, 4


@dataclass(frozen=True)
class LadderData:
    """Samples that a ladder is fitted to; pixels are flat."""

    inputs: np.ndarray  # inputs that depend on time, `(N, C, P)`; an array or a view of one
    input_rows: np.ndarray  # row of each sample in it
    targets: np.ndarray  # targets, `(M, K, P)`
    target_rows: np.ndarray  # row of each sample in it
    starts: np.ndarray  # times of the inputs, seconds
    valid: np.ndarray  # times of the targets
    calendar: str  # their calendar
    block: np.ndarray  # block of each sample; the last one is the validation period
    lead: np.ndarray | None = None  # lead time of each sample where they differ, else None

    def x(self, pixels: np.ndarray) -> np.ndarray:
        return _at(self.inputs, self.input_rows, pixels)

    def y(self, pixels: np.ndarray) -> np.ndarray:
        return _at(self.targets, self.target_rows, pixels).astype(np.float64)


# Most samples that regressions are fitted to; of more, every second or third is taken.
_MOST_SAMPLES = 12_000


def _make_data(train: GridSamples, validation: GridSamples, block: np.ndarray) -> LadderData:
    """Samples of the training and of the validation period, which is a block of its own, block by block."""
    step = -(-(len(train) + len(validation)) // _MOST_SAMPLES)
    chosen = [samples.take(np.arange(0, len(samples), step)) for samples in (train, validation)]
    blocks = np.concatenate([block[::step], np.full(len(chosen[1]), block.max() + 1)])
    in_time = np.argsort(blocks, kind="stable")

    def joined(read: Callable[[GridSamples], Any]) -> np.ndarray:
        return np.concatenate([read(samples) for samples in chosen])[in_time]

    inputs, targets = (table.values.reshape(*table.values.shape[:2], -1) for table in (train.inputs, train.targets))
    return LadderData(
        inputs,
        joined(lambda samples: samples.input_rows),
        targets,
        joined(lambda samples: samples.target_rows),
        joined(lambda samples: samples.pairs.starts),
        joined(lambda samples: samples.pairs.valid),
        train.pairs.calendar,
        blocks[in_time],
        None if train.lead is None else joined(lambda samples: samples.lead),
    )


def _at(values: np.ndarray, rows: np.ndarray, pixels: np.ndarray) -> np.ndarray:
    """Some rows and pixels of an array, which may be a memory map: only the part between the pixels is read."""
    if not len(pixels):
        return np.empty((len(rows), values.shape[1], 0), values.dtype)
    first = int(pixels.min())
    return values[rows, :, first : int(pixels.max()) + 1][:, :, pixels - first]


def candidate_bases(seconds: np.ndarray, calendar: str) -> list[TimeBasis]:
    """Bases that times allow: harmonics of the year need one, those of the day need two."""
    start, stop = float(seconds.min()), float(seconds.max())
    whole = TimeBasis(calendar=calendar, origin=(start + stop) / 2.0, scale=max((stop - start) / 2.0, 1.0))
    days = DAYS_OF_YEAR.get(calendar, 365.2425)
    step = float(np.median(np.diff(np.unique(seconds)))) if len(np.unique(seconds)) > 1 else np.inf
    of_year = np.unique(np.round(seconds / 86400.0 / days % 1.0 * 24.0) % 24)
    of_day = np.unique(seconds % 86400)
    most_year = min(_YEAR_HARMONICS, (len(of_year) - 1) // 2) if stop - start + step >= 0.95 * days * 86400.0 else 0
    most_day = min(_DAY_HARMONICS, len(of_day) // 2) if step < 86400 and stop - start >= 2 * 86400 else 0
    found = []
    for year in range(most_year + 1):
        for day in range(most_day + 1):
            for trend in (False, True) if stop - start >= _FEWEST_YEARS * days * 86400.0 else (False,):
                basis = replace(whole, year=year, day=day, trend=trend)
                if basis.size <= max(1, len(seconds) // 4):
                    found.append(basis)
    # Others than the usual one, two harmonics of each, must prove better.
    return sorted(found, key=lambda basis: (basis.year - 2) ** 2 + (basis.day - 2) ** 2 + basis.trend)


def ring_neighbours(shape: tuple[int, int], rings: Sequence[int], *, closes_circle: bool) -> np.ndarray:
    """Flat index of each pixel and of those around it, `(P, 1 + 8 * rings)`; -1 beyond the border."""
    rows, columns = np.divmod(np.arange(shape[0] * shape[1]), shape[1])
    found = [np.arange(shape[0] * shape[1])]
    for distance in rings:
        for down, right in ((-1, -1), (-1, 0), (-1, 1), (0, -1), (0, 1), (1, -1), (1, 0), (1, 1)):
            row, column = rows + down * distance, columns + right * distance
            inside = (row >= 0) & (row < shape[0])
            if closes_circle:
                column = column % shape[1]
            inside &= (column >= 0) & (column < shape[1])
            found.append(np.where(inside, row * shape[1] + column, -1))
    return np.stack(found, axis=1).astype(np.int64)


def mesh_neighbours(coordinates: np.ndarray, rings: Sequence[int]) -> np.ndarray:
    """Each node `(N, 3)` of a mesh, the eight nodes that are nearest to it, and every second of the sixteen after."""
    found = np.asarray(scipy.spatial.KDTree(coordinates).query(coordinates, 25)[1])
    ranks = [0] + [rank for ring in rings for rank in {1: range(1, 9), 2: range(9, 25, 2)}[ring]]
    return found[:, ranks].astype(np.int64)


def _solve(system: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Solves symmetric systems, of columns that may hardly differ or be all zero, for several right sides."""
    system = system.copy()
    diagonal = np.einsum("...ii->...i", system)
    diagonal += 1e-10 * diagonal.sum(axis=-1, keepdims=True) / max(system.shape[-1], 1) + 1e-200
    is_vector = right.ndim == system.ndim - 1
    right = right[..., None] if is_vector else right
    try:
        found = np.linalg.solve(system, right)
    except np.linalg.LinAlgError:
        found = np.linalg.pinv(system, hermitian=True) @ right
    return found[..., 0] if is_vector else found


def least_squares(columns: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Coefficients `(p, M)` of columns `(N, p)` for values `(N, M)`; NaN do not count, without any value it is 0."""
    gram = columns.T @ columns + _LEAST_PENALTY * len(columns) * np.eye(columns.shape[1])
    values = np.asarray(values, np.float64)
    found = _solve(gram, columns.T @ values)
    for column in np.flatnonzero(np.isnan(found).any(axis=0)):
        kept = ~np.isnan(values[:, column])
        part = columns[kept]
        gram = part.T @ part + _LEAST_PENALTY * max(len(part), 1) * np.eye(columns.shape[1])
        found[:, column] = _solve(gram, part.T @ values[kept, column])
    return found


def fit_anomalies(data: LadderData, basis: TimeBasis, chosen: np.ndarray, weights: np.ndarray) -> Anomalies:
    """The climatology of the inputs of some samples, their spread around it, and the range of their means over areas.

    The range is that of all samples.
    """
    num_channels, num_pixels = data.inputs.shape[1:]
    columns = basis(data.starts[chosen])
    climatology = np.zeros((columns.shape[1], num_channels, num_pixels), np.float32)
    scale = np.zeros((num_channels, num_pixels), np.float32)
    for pixels in pixel_chunks(num_pixels, len(chosen) * num_channels):
        values = _at(data.inputs, data.input_rows[chosen], pixels).astype(np.float64)
        found = least_squares(columns, values.reshape(len(chosen), -1))
        rest = values - (columns @ found).reshape(values.shape)
        climatology[:, :, pixels] = found.reshape(-1, num_channels, len(pixels))
        with np.errstate(invalid="ignore"):
            count = np.maximum((~np.isnan(rest)).sum(axis=0), 1)
            scale[:, pixels] = np.sqrt(np.nansum(np.square(rest), axis=0) / count)
    usual = np.sqrt(np.mean(np.square(scale, dtype=np.float64), axis=1, keepdims=True))
    area = np.where(scale > 0.0, weights, 0.0)
    area = (area / np.maximum(area.sum(axis=1, keepdims=True), 1e-30)).astype(np.float32)
    scale = np.maximum(_pooled_spread(scale, usual, len(chosen)), np.maximum(0.02 * usual, 1e-30)).astype(np.float32)
    found = Anomalies(basis, climatology, scale, area, np.zeros((2, num_channels), np.float32))
    means = np.zeros((len(data.starts), num_channels))
    for pixels in pixel_chunks(num_pixels, len(data.starts) * num_channels):
        means += np.einsum("ncp,cp->nc", found(data.x(pixels), data.starts, pixels), area[:, pixels])
    return replace(found, range=_likely_range(means[np.argsort(data.starts)]).astype(np.float32))


def _pooled_spread(scale: np.ndarray, usual: np.ndarray, count: int) -> np.ndarray:
    """Spread of each pixel, with some of the usual one where few times tell it; 0 where there is none."""
    return np.where(scale > 0.0, np.hypot(scale, min(1.0, _PRIOR_OF_SPREAD / count) * usual), 0.0)


def _likely_range(series: np.ndarray) -> np.ndarray:
    """Range of series `(N, C)`, and what others of their kind may be beyond it; much where few are independent."""
    line = np.stack([np.ones(len(series)), np.linspace(-1.0, 1.0, len(series))], axis=1)
    rest = series - line @ least_squares(line, series)
    size = np.maximum(rest.std(axis=0), 1e-30)
    likeness = np.clip((rest[1:] * rest[:-1]).mean(axis=0) / np.square(size), 0.0, 0.99)
    count = np.maximum(len(series) * (1.0 - likeness) / (1.0 + likeness), 3.0)
    # The next one of as many independent values, at 99 %, less the largest of them.
    slack = scipy.special.stdtrit(count - 1.0, 0.995) * np.sqrt(1.0 + 1.0 / count) - np.sqrt(2.0 * np.log(count))
    slack = np.maximum(slack, 0.0) * size
    return np.stack([series.min(axis=0) - slack, series.max(axis=0) + slack])


def fit_patterns(anomalies: np.ndarray, pixels: np.ndarray, weights: np.ndarray, count: int) -> Patterns:
    """Patterns of anomalies `(N, C, S)`, weighted by area `(S,)`."""
    root = np.sqrt(np.broadcast_to(weights, anomalies.shape[1:])).reshape(-1)
    flat = anomalies.reshape(len(anomalies), -1).astype(np.float64) * root
    values, vectors = np.linalg.eigh(flat.T @ flat / len(flat))
    count = min(count, len(values), len(flat) // 4)
    values, vectors = values[::-1][:count], vectors[:, ::-1][:, :count]
    kept = values > 1e-6 * values[:1].sum()
    return Patterns(pixels, (vectors[:, kept] * root[:, None] / np.sqrt(values[kept])).T.astype(np.float32))


def _spread_evenly(pixels: np.ndarray, count: int) -> np.ndarray:
    """At most `count` of some pixels, without a regular step, which rows would meet in the same columns."""
    if len(pixels) <= count:
        return pixels
    return np.sort(np.random.default_rng(0).choice(pixels, count, replace=False))


class NormalEquations:
    """Sums of products of columns and targets of each pixel over each block of times, float64."""

    def __init__(self, columns: np.ndarray, targets: np.ndarray, block: np.ndarray) -> None:
        missing = np.asarray(np.isnan(targets).any(axis=2))
        if missing.any():
            columns, targets = columns.copy(), targets.copy()
            columns[missing], targets[missing] = 0.0, 0.0
        gram, cross, squares, counts = [], [], [], []
        for number in range(int(block.max()) + 1):
            of_block = np.flatnonzero(block == number)
            part, truth = columns[:, of_block], targets[:, of_block]
            gram.append(part.transpose(0, 2, 1) @ part)
            cross.append(part.transpose(0, 2, 1) @ truth)
            squares.append(np.square(truth).sum(axis=1))
            counts.append(len(of_block) - missing[:, of_block].sum(axis=1))
        self.gram, self.cross = np.stack(gram, axis=1), np.stack(cross, axis=1)
        self.squares, self.counts = np.stack(squares, axis=1), np.stack(counts, axis=1)

    def fit(self, chosen: np.ndarray, penalty: np.ndarray, start: np.ndarray, seen: np.ndarray) -> np.ndarray:
        """Coefficients `(n, F, p, K)` of fits to the blocks that each has `seen`, `(F, B)`, drawn to `start`."""
        gram, cross = self._summed(chosen, seen)
        counts = np.maximum(self.counts @ seen.T, 1)[..., None]
        found, unpenalised = np.empty(cross.shape), np.einsum("...ii->...i", gram).copy()
        for value, targets in _alike(penalty):
            diagonal = counts * np.maximum(value, _LEAST_PENALTY)
            np.einsum("...ii->...i", gram)[...] = unpenalised + diagonal
            found[..., targets] = _solve(gram, cross[..., targets] + diagonal[..., None] * start[..., targets])
        return found

    def _summed(self, chosen: np.ndarray, seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sums over the blocks that each fit has seen, `(n, F, p, p)` and `(n, F, p, K)`."""
        found = []
        for sums in self._of(chosen):
            joined = np.repeat(sums.sum(axis=1, keepdims=True), len(seen), axis=1)
            for fit, block in np.argwhere(seen == 0.0):
                joined[:, fit] -= sums[:, block]
            found.append(joined)
        return found[0], found[1]

    def _of(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Products of some columns, views where these lie side by side."""
        if len(chosen) and chosen[-1] - chosen[0] == len(chosen) - 1:
            part = slice(chosen[0], chosen[-1] + 1)
            return self.gram[:, :, part, part], self.cross[:, :, part]
        return self.gram[:, :, chosen[:, None], chosen], self.cross[:, :, chosen]

    def errors(self, chosen: np.ndarray, found: np.ndarray) -> np.ndarray:
        """Sum of squared errors of each block by the coefficients of the fit that has not seen it, `(n, B, K)`."""
        gram, cross = self._of(chosen)
        return self.squares - 2.0 * (found * cross).sum(axis=2) + (found * (gram @ found)).sum(axis=2)

    def pooled(self, chosen: np.ndarray, is_time: np.ndarray, seen: np.ndarray, penalty: np.ndarray) -> np.ndarray:
        """Coefficients that all pixels share beside those of time and those that are never used, 0: `(F, p, K)`."""
        time, rest = np.flatnonzero(is_time), np.flatnonzero(~is_time)
        found = np.zeros((len(seen), len(chosen), self.cross.shape[3]))
        if not len(rest):
            return found
        grams, crosses = self._summed(chosen, seen)
        for number in range(len(seen)):
            gram, cross = grams[:, number], crosses[:, number]
            size = 1e-9 * np.trace(gram, axis1=1, axis2=2)[:, None, None]
            of_time = gram[:, time][..., time] + size * np.eye(len(time))
            removed = _solve(of_time, np.concatenate([gram[:, time][..., rest], cross[:, time]], axis=2))
            inner = (gram[:, rest][..., rest] - gram[:, rest][..., time] @ removed[..., : len(rest)]).sum(axis=0)
            outer = (cross[:, rest] - gram[:, rest][..., time] @ removed[..., len(rest) :]).sum(axis=0)
            size = np.trace(inner) / len(rest)
            times = max(float(self.counts[:, seen[number] > 0].sum(axis=1).mean()), 1.0)
            for value, targets in _alike(penalty[rest]):
                diagonal = np.where(value >= _NEVER, _NEVER, max(1e-3, (_PRIOR_OF_POOLED / times) ** 2))
                found[number, rest[:, None], targets] = _solve(inner + size * np.diag(diagonal), outer[:, targets])
        return found


def _alike(penalty: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Penalties of columns, and the targets that have them."""
    unique, inverse = np.unique(penalty, axis=1, return_inverse=True)
    for number in range(unique.shape[1]):
        yield unique[:, number], np.flatnonzero(np.ravel(inverse) == number)


@dataclass(frozen=True)
class Choice:
    """A regression: its columns, and the penalty of each column and target."""

    columns: np.ndarray
    penalty: np.ndarray


@dataclass(frozen=True)
class FittedLadders:
    """Ladders of one choice of columns."""

    train: Ladder  # fitted to the training period
    blocks: list[Ladder]  # each fitted without one block of it
    all: Ladder  # fitted to the training and the validation period
    block: np.ndarray  # block of each training sample
    neighbours: np.ndarray  # each pixel and the nearest ones, `(P, 9)`


class LadderFit:
    """Chooses and fits the rungs, to samples on a grid, or on the `nodes` of a mesh."""

    def __init__(
        self, train: GridSamples, validation: GridSamples, grid: HorizontalGrid, weights: np.ndarray,
        uniform: Sequence[int] = (), nodes: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        statistics = self.statistics = train.statistics
        self.grid, self.nodes, self.uniform = grid, nodes, uniform
        order = np.argsort(train.pairs.valid, kind="stable")
        num_blocks = max(2, min(NUM_BLOCKS, len(train) // 4))
        self.block_of_train = np.empty(len(train), np.int64)
        self.block_of_train[order] = np.arange(len(train)) * num_blocks // len(train)
        self.data = data = _make_data(train, validation, self.block_of_train)
        self.is_dynamic = np.asarray([not channel.is_static for channel in train.inputs.channels])
        place = np.cumsum(self.is_dynamic) - 1
        self.reference = np.where(statistics.reference >= 0, place[statistics.reference], -1)
        # A forecast begins at its input.
        self.passed = np.where(train.pairs.valid[0] > train.pairs.starts[0], self.reference, -1)
        self.rings = [ring for ring in RINGS if 2 * ring < max(grid.shape)]
        if grid.kind == "mesh":
            self.rings = [1, 2] if nodes is not None and len(nodes) > 25 else []
        self.num_channels, self.num_pixels = data.inputs.shape[1:]
        self.num_targets = data.targets.shape[1]
        self.weights = weights.reshape(self.num_pixels)
        self.mean_error = statistics.mean_error.reshape(self.num_targets, -1).astype(np.float64)
        self.train = np.flatnonzero(data.block < num_blocks)
        self.num_blocks = num_blocks + 1
        # Each block of times is predicted by a fit to all others.
        self.others = 1.0 - np.eye(self.num_blocks)
        self.pixels = np.flatnonzero(statistics.target_mask.reshape(self.num_targets, -1).any(axis=0))
        self._set_target_scale()

    def neighbours(self, rings: Sequence[int]) -> np.ndarray:
        """Each pixel and those around it, or nodes of a mesh."""
        if self.nodes is not None:
            return mesh_neighbours(self.nodes, rings)
        return ring_neighbours(self.grid.shape, rings, closes_circle=self.grid.closes_circle)

    def references(self, pixels: np.ndarray) -> np.ndarray:
        """Inputs that the targets continue, `(N, K, n)`."""
        found = self.data.x(pixels)[:, self.reference]
        fill = self.statistics.input_fill.reshape(len(self.is_dynamic), -1)[self.statistics.reference]
        return np.where(np.isnan(found), fill[:, pixels], found)

    def _set_target_scale(self) -> None:
        mean, scale = np.zeros((2, self.num_targets, self.num_pixels))
        for pixels in pixel_chunks(self.num_pixels, len(self.train) * self.num_targets):
            values = self.data.y(pixels)[self.train]
            count = np.maximum((~np.isnan(values)).sum(axis=0), 1)
            mean[:, pixels] = np.nansum(values, axis=0) / count
            scale[:, pixels] = np.sqrt(np.nansum(np.square(values - mean[:, pixels]), axis=0) / count)
        usual = np.sqrt(np.mean(np.square(scale), axis=1, keepdims=True))
        self.target_mean = mean
        scale = _pooled_spread(scale, usual, len(self.train))
        self.target_scale = np.maximum(scale, np.maximum(1e-3 * usual, 1e-35))

    def run(self) -> FittedLadders:
        """Chooses, and fits at all pixels."""
        design, components = self.widest_design(self.choose_basis())
        return self.fit(*self.choose(design, components))

    def standardised(self, pixels: np.ndarray) -> np.ndarray:
        """Targets of mean 0 and spread 1, `(n, N, K)`."""
        values = (self.data.y(pixels) - self.target_mean[:, pixels]) / self.target_scale[:, pixels]
        return values.transpose(2, 0, 1)

    def columns(self, design: Design, components: np.ndarray, pixels: np.ndarray) -> np.ndarray:
        """Columns of all samples, `(n, N, p)`."""
        data = self.data
        needed, where = design.needed(pixels)
        anomalies = design.anomalies(data.x(needed), data.starts, needed)
        anomalies = np.concatenate([anomalies, np.zeros_like(anomalies[:, :, :1])], axis=2)
        return design(pixels, anomalies, where, components, design.of_times(data.valid), data.lead)

    def error(self, squared: np.ndarray, pixels: np.ndarray) -> np.ndarray:
        """Part of each block in the mean squared error of each target, relative to its variance, `(B, K)`."""
        weights = self.weights[pixels][:, None] * np.square(self.target_scale[:, pixels].T)
        return (squared * weights[:, None]).sum(axis=0) / (weights.sum(axis=0) * len(self.data.valid))

    def choose_basis(self) -> TimeBasis:
        """The columns of time with the lowest error of a regression on the inputs at the pixel."""
        data = self.data
        pixels = _spread_evenly(self.pixels, _MOST_CHOICE_PIXELS // 2)
        targets = self.standardised(pixels)
        part = replace(data, inputs=np.ascontiguousarray(data.inputs[:, :, pixels]))
        every = np.arange(len(pixels))
        best, lowest = TimeBasis(calendar=data.calendar), np.full(self.num_blocks, np.inf)
        for basis in candidate_bases(data.valid[self.train], data.calendar):
            values = fit_anomalies(part, basis, self.train, self.weights[pixels])(part.x(every), data.starts, every)
            time = np.broadcast_to(basis(data.valid), (len(pixels), len(data.valid), basis.size))
            columns = np.concatenate([time, values.transpose(2, 0, 1)], axis=2, dtype=np.float64)
            equations = NormalEquations(columns, targets, data.block)
            chosen = np.arange(columns.shape[2])
            penalty = np.repeat(np.where(chosen < basis.size, 0.0, 1e-2)[:, None], self.num_targets, axis=1)
            found = equations.fit(chosen, penalty, np.zeros((1, *penalty.shape)), self.others)
            error = self.error(equations.errors(chosen, found), pixels).mean(axis=1)
            # Other harmonics must be better by more than the standard error over the blocks.
            is_sure = np.isfinite(lowest).all() and (basis.year, basis.day) != (best.year, best.day)
            sure = (lowest - error).std(ddof=1) * len(error) ** 0.5 if is_sure else 0.0
            if (lowest - error).sum() > max(_LEAST_GAIN * error.sum(), sure):
                best, lowest = basis, error
        return best

    def widest_design(self, basis: TimeBasis) -> tuple[Design, np.ndarray]:
        """All columns that are tried, and the components of all samples."""
        data, channels = self.data, tuple(range(self.num_channels))
        anomalies = fit_anomalies(data, basis, self.train, self.weights)
        around = tuple(c for c in channels if c not in self.uniform)
        if len(around) > _MOST_RING_CHANNELS:
            around = tuple(sorted({int(c) for c in self.reference if c >= 0}))
        rings = tuple(self.rings) if len(around) <= 2 else tuple(r for r in self.rings if r in (1, 4))
        rings = rings if 0 < len(around) <= _MOST_RING_CHANNELS else ()
        pixels = _spread_evenly(self.pixels, max(8, _MOST_PATTERN_VALUES // self.num_channels))
        values = anomalies(data.x(pixels), data.starts, pixels)
        patterns = fit_patterns(values[self.train], pixels, self.weights[pixels], max(_COMPONENTS))
        seasonal = tuple(sorted({int(c) for c in self.reference if c >= 0})) or channels
        seasonal = seasonal if len(seasonal) <= _MOST_RING_CHANNELS else ()
        columns = Columns(channels, around, rings, len(patterns.vectors), seasonal, data.lead is not None)
        return Design(anomalies, columns, self.neighbours(rings), patterns), patterns(values)

    def choose(self, design: Design, components: np.ndarray) -> tuple[Design, np.ndarray, dict[str, Choice]]:
        """The columns and penalties of the regressions; the design has no columns that none of them uses."""
        groups = design.groups()
        most = min(_MOST_CHOICE_PIXELS, _CHOICE_VALUES // (len(self.data.valid) * len(groups)) + 1)
        pixels = _spread_evenly(self.pixels, max(most, 60))
        columns = self.columns(design, components, pixels)
        equations = NormalEquations(columns, self.standardised(pixels), self.data.block)
        kind = np.asarray([kind for kind, _ in groups])
        number = np.asarray([number for _, number in groups])
        always = np.isin(kind, ("time", "lead", "pixel", "slope"))
        best = self._penalise(equations, np.flatnonzero(always), kind, pixels, _FEW_PENALTIES)
        # First the pixels around, then the patterns, then the seasons: each is kept if it lowers the error.
        tried = [(kind == "ring") & np.isin(number, rings) for rings in _ring_sets(design.columns.rings)]
        tried += [(kind == "pattern") & (number < count) for count in _COMPONENTS]
        tried.append(kind == "season")
        for stage in ("ring", "pattern", "season"):
            before = np.isin(np.arange(len(kind)), best[1].columns)
            for extra in tried:
                if extra.any() and (kind[extra] == stage).all():
                    found = self._penalise(equations, np.flatnonzero(before | extra), kind, pixels, _FEW_PENALTIES)
                    if found[0] < (1.0 - _LEAST_GAIN) * best[0]:
                        best = found
        best = self._penalise(equations, best[1].columns, kind, pixels, _PENALTIES)
        used = [groups[column] for column in best[1].columns]
        rings = tuple(r for r in design.columns.rings if ("ring", r) in used)
        reduced = replace(
            design.columns,
            rings=rings,
            components=sum(name == "pattern" for name, _ in used),
            seasonal=design.columns.seasonal if any(name == "season" for name, _ in used) else (),
        )
        patterns = replace(design.patterns, vectors=design.patterns.vectors[: reduced.components])
        design = Design(design.anomalies, reduced, self.neighbours(rings), patterns)
        kind, number = (np.asarray(each) for each in zip(*design.groups(), strict=True))
        every = np.arange(len(kind))
        is_time, is_pixel = np.isin(kind, ("time", "lead")), kind == "pixel"
        none = np.where(is_time, 0.0, _NEVER)[:, None].repeat(self.num_targets, axis=1)
        choices = {CLIMATOLOGY: Choice(every[is_time], none[is_time])}
        size = max(1e-3, _PRIOR_TIMES / len(self.data.valid))
        small = np.where(is_time[:, None], 0.0, np.where(is_pixel[:, None], size, _NEVER)).repeat(self.num_targets, 1)
        both = is_time | is_pixel
        if (self.reference >= 0).all():
            own = np.where(is_pixel, number, -2)[:, None] == self.reference
            penalty = np.where(is_pixel[:, None] & ~own, _NEVER, small)
            choices[DAMPED] = Choice(every[both], penalty[both])
        if (self.reference < 0).any() or self.num_channels > 1:
            choices[LINEAR] = Choice(every[both], small[both])
        choices[RIDGE] = Choice(every, best[1].penalty)
        return design, components[:, : reduced.components], choices

    def _penalise(
        self, equations: NormalEquations, chosen: np.ndarray, kind: np.ndarray, pixels: np.ndarray,
        penalties: Sequence[float],
    ) -> tuple[float, Choice]:  # fmt: skip
        """The penalty of each target with the lowest error, and that error."""
        is_time = np.isin(kind[chosen], ("time", "lead"))
        penalty = np.zeros((len(chosen), self.num_targets))
        start = equations.pooled(chosen, is_time, self.others, penalty)
        errors = []
        for value in penalties:
            penalty = np.where(is_time, 0.0, value)[:, None].repeat(self.num_targets, axis=1)
            held = equations.fit(chosen, penalty, start, self.others)
            errors.append(self.error(equations.errors(chosen, held), pixels).sum(axis=0))
        best = np.argmin(errors, axis=0)
        penalty = np.where(is_time[:, None], 0.0, np.asarray(penalties)[best])
        return float(np.min(errors, axis=0).mean()), Choice(chosen, penalty)

    def fit(self, design: Design, components: np.ndarray, choices: dict[str, Choice]) -> FittedLadders:
        """Fits at all pixels."""
        size, num_blocks = len(design.groups()), self.num_blocks
        seen = np.concatenate([self.others, np.ones((1, num_blocks))])
        is_time = np.asarray([kind in ("time", "lead") for kind, _ in design.groups()])
        sample = _spread_evenly(self.pixels, _MOST_CHOICE_PIXELS)
        equations = NormalEquations(
            self.columns(design, components, sample), self.standardised(sample), self.data.block
        )
        starts = {
            name: equations.pooled(choice.columns, is_time[choice.columns], seen, choice.penalty)
            for name, choice in choices.items()
        }
        shape = (size, self.num_targets, self.num_pixels)
        # Without each block, the last of which is the validation period, and of all samples.
        found = [{name: np.zeros(shape, np.float32) for name in choices} for _ in range(num_blocks + 1)]
        simple = [PERSISTENCE, MEAN_ERROR] if (self.reference >= 0).all() else []
        spreads = {name: np.zeros(shape[1:]) for name in (*simple, *choices)}
        sums: list[tuple[np.ndarray, np.ndarray]] = []
        for pixels in pixel_chunks(self.num_pixels, len(self.data.valid) * size):
            columns, targets = self.columns(design, components, pixels), self.standardised(pixels)
            equations = NormalEquations(columns, targets, self.data.block)
            predicted = {}
            for name, choice in choices.items():
                held = equations.fit(choice.columns, choice.penalty, starts[name], seen)
                for number, each in enumerate(found):
                    each[name][choice.columns[:, None], :, pixels] = held[:, number].transpose(1, 0, 2)
                predicted[name] = np.empty(targets.shape)
                for number in range(num_blocks):
                    rows = self.data.block == number
                    predicted[name][:, rows] = columns[:, rows][..., choice.columns] @ held[:, number]
            scale, mean = self.target_scale[:, pixels].T[:, None], self.target_mean[:, pixels].T[:, None]
            predicted = {name: each * scale + mean for name, each in predicted.items()}
            if simple:
                predicted[PERSISTENCE] = self.references(pixels).transpose(2, 0, 1)
                predicted[MEAN_ERROR] = predicted[PERSISTENCE] + self.mean_error[:, pixels].T[:, None]
            errors = {name: predicted[name] - (targets * scale + mean) for name in spreads}
            for name, each in errors.items():
                spreads[name][:, pixels] = _root_mean_square(each).T
            sums.append(_products(errors, self.weights[pixels], self.data.block))
        best, weights, errors = _combine(list(spreads), *(np.sum(each, axis=0) for each in zip(*sums, strict=True)))
        ladders = [
            Ladder(
                self.statistics, self.is_dynamic, design, self.target_mean, self.target_scale, self.passed, each,
                self.mean_error, weights, {name: np.nan_to_num(spread) for name, spread in spreads.items()}, errors,
                best,
            )
            for each in found
        ]  # fmt: skip
        around = self.neighbours(self.rings[:1])
        return FittedLadders(ladders[-2], ladders[:-2], ladders[-1], self.block_of_train, around)


def _root_mean_square(errors: np.ndarray) -> np.ndarray:
    """Over the samples of errors `(n, N, K)`; 0 without any."""
    count = np.maximum((~np.isnan(errors)).sum(axis=1), 1)
    return np.sqrt(np.nansum(np.square(errors), axis=1) / count)


def _products(errors: dict[str, np.ndarray], weights: np.ndarray, block: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sums of products of errors `(n, N, K)` of all rungs at pixels of some weights, over each block: `(B, K, R, R)`.

    And the sums of the weights, `(B, K)`.
    """
    stacked = np.stack(list(errors.values()))
    is_there = np.asarray(~np.isnan(stacked).any(axis=0))
    stacked = np.where(is_there, stacked, 0.0) * np.sqrt(weights)[:, None, None]
    products, counts = [], []
    for number in range(int(block.max()) + 1):
        part = stacked[:, :, block == number]
        products.append(np.einsum("rink,sink->krs", part, part))
        counts.append((is_there[:, block == number] * weights[:, None, None]).sum(axis=(0, 1)))
    return np.stack(products), np.stack(counts)


def _combine(
    names: list[str], products: np.ndarray, counts: np.ndarray
) -> tuple[str, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The best rung, the weights of the combination, and root mean squared errors at times that were not fitted."""
    counts = np.maximum(counts, 1e-30)
    # The validation period is the nearest to the times to come.
    share = (1.0 - _LAST) * counts / counts.sum(axis=0)
    share[-1] += _LAST
    of_blocks = products / counts[..., None, None]
    means = (share[..., None, None] * of_blocks).sum(axis=0)
    start = DAMPED if DAMPED in names else LINEAR
    members = [name for name in (RIDGE, start, PERSISTENCE, MEAN_ERROR) if name in names]
    places = [names.index(name) for name in members]
    weights = np.zeros((len(names), len(means)))
    for k, of_target in enumerate(means[:, places][:, :, places]):
        # The less is expected of a model, the larger its error is beside the ridge regression's.
        ratios = np.sqrt(of_target[0, 0] / np.maximum(np.diagonal(of_target), 1e-300))
        prior = np.asarray([_PRIOR.get(name, 0.0) for name in members]) * np.minimum(ratios, 1.0)
        prior[0] = 1.0 - prior[1:].sum()
        found = 0.5 * prior + 0.5 * _best_shares(of_target)
        found[found < _LEAST_WEIGHT] = 0.0
        weights[places, k] = found / found.sum()
    errors = {name: np.sqrt(np.diagonal(means, axis1=1, axis2=2)[:, n]) for n, name in enumerate(names)}
    used = {name: weight for name, weight in zip(names, weights, strict=True) if weight.any()}
    if len(used) == 1:
        return next(iter(used)), {}, errors
    errors[COMBINATION] = np.sqrt(np.einsum("rk,krs,sk->k", weights, means, weights))
    return COMBINATION, used, errors


def _best_shares(products: np.ndarray) -> np.ndarray:
    """Shares of models, not negative and of sum 1, with the least squared error, by the products of their errors."""
    size = np.trace(products) / len(products) + 1e-300
    # The sum is a further equation, of a large weight.
    system = products / size + 1e-9 * np.eye(len(products)) + 1e4
    root = np.linalg.cholesky(system)
    found = scipy.optimize.nnls(root.T, np.linalg.solve(root, np.full(len(products), 1e4)))[0]
    return found / found.sum()


def _ring_sets(rings: Sequence[int]) -> list[tuple[int, ...]]:
    """Sets of distances that are tried: each alone, and the nearest with those further out."""
    alone = [(ring,) for ring in rings]
    return alone + [sets for sets in ((1, 4), (1, 2, 4), (1, 2, 4, 8)) if set(sets) <= set(rings)]
