"""Scores of a regressor beside those of simple predictions."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy.special import ndtri

from smoe._files import write_atomically
from smoe._notebook import html_table, html_text
from smoe.errors import DataError, OptionError, printable
from smoe.gridded import (
    FieldSource,
    OpenOptions,
    Pairs,
    Period,
    TimeLabels,
    are_same_units,
    parse_period,
    remaining_samples,
    samples_in,
)
from smoe.regression._fitted import Fitted, central, errors_in_units, finished, model_values, net_values
from smoe.regression._ladder import CLIMATOLOGY, COMBINATION, PERSISTENCE
from smoe.regression._options import SIMPLE, RegressorOptions
from smoe.regression._prediction import find_gaps, open_inputs, read_inputs
from smoe.regression._preparation import (
    lead_channel,
    open_targets,
    pair_sources,
    transformed,
    without_lead,
)
from smoe.regression._saved import without_nan

SCORES = "scores.json"

MODEL = "model"
"""Name of the net that predicts, in a table."""
_NUM_RESAMPLES = 200


@dataclass
class ErrorSums:
    """Errors of one predictor: for each sample and target the area-weighted means."""

    squared: list[np.ndarray] = field(default_factory=list)
    absolute: list[np.ndarray] = field(default_factory=list)
    objective: list[np.ndarray] = field(default_factory=list)

    def add(self, prediction: np.ndarray, target: np.ndarray, weights: np.ndarray) -> None:
        """Adds a batch of predictions `(N, K, H, W)`; pixels whose target is NaN do not count."""
        error = prediction.astype(np.float64) - target
        self.squared.append(weighted_means(np.square(error), target, weights))
        self.absolute.append(weighted_means(np.abs(error), target, weights))


def weighted_means(errors: np.ndarray, target: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Weighted mean over the pixels of each sample and target, `(N, K)`; NaN where no pixel has a value."""
    counts = ~np.isnan(target) * weights
    totals = counts.sum(axis=(2, 3), dtype=np.float64)
    sums = (np.where(counts > 0, errors, 0.0) * counts).sum(axis=(2, 3), dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(totals > 0, sums / totals, np.nan)


@dataclass(frozen=True)
class ScoreTable:
    """Errors of predictors in the units of the targets.

    Attributes:
        targets: Names of the targets.
        units: Their units.
        num_samples: Number of times.
        rmse: Root of the mean squared error of each target, by predictor.
        rmse_spread: Standard deviation of the same over a bootstrap of blocks of times.
        mae: Mean absolute error, by predictor.
        difference: RMSE less that of the best simple prediction, by predictor.
        difference_spread: Standard deviation of the difference over the same blocks of times, for both alike.
        objective: Value of the objective where it is another one: its name, and its values by predictor.
        period: What was scored, in words.
        notes: What must be said of the model and of the period.
        squared: Mean squared error of each time and target, `(N, K)`, by predictor.
        absolute: The same of the mean absolute error.
        valid: Times of the targets in seconds, `(N,)`, and their calendar.
        regions: RMSE of each target by region and predictor.
    """

    targets: tuple[str, ...]
    units: tuple[str, ...]
    num_samples: int
    rmse: Mapping[str, tuple[float, ...]]
    rmse_spread: Mapping[str, tuple[float, ...]]
    mae: Mapping[str, tuple[float, ...]]
    difference: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    difference_spread: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    objective: tuple[str, Mapping[str, tuple[float, ...]]] | None = None
    period: str = ""
    notes: tuple[str, ...] = ()
    squared: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False, compare=False)
    absolute: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False, compare=False)
    valid: tuple[np.ndarray, str] = field(default=(np.empty(0, np.int64), "standard"), repr=False, compare=False)
    regions: Mapping[str, Mapping[str, tuple[float, ...]]] = field(default_factory=dict, repr=False, compare=False)

    def value(self, predictor: str, target: str | None = None, metric: str = "rmse") -> float:
        """One number, such as `table.value("model", "t2m")`."""
        which = getattr(self, metric) if metric != "objective" else (self.objective or ("", {}))[1]
        return which[predictor][0 if target is None else self.targets.index(target)]

    def by(self, part: Literal["year", "month", "hour", "region"]) -> Mapping[Any, Mapping[str, tuple[float, ...]]]:
        """RMSE of each target by predictor, for the times of each year, month or hour, or in each region."""
        if part == "region":
            return self.regions
        seconds, calendar = self.valid
        months = TimeLabels(seconds, calendar).months(seconds)
        labels = {"year": months // 12, "month": months % 12 + 1, "hour": seconds % 86400 // 3600}[part]
        return {
            int(label): {name: _roots(each[labels == label]) for name, each in self.squared.items()}
            for label in np.unique(labels)
        }

    def __str__(self) -> str:
        """A table, best first, with the model marked by `*`, and the notes."""
        lines = []
        width = max(34, *(len(name) + 1 for name in self.rmse))
        for number, (target, units) in enumerate(zip(self.targets, self.units, strict=True)):
            of_period = f" of {self.period}" if self.period else ""
            lines.append(printable(f"{target} ({units or 'no units'}), {self.num_samples} times{of_period}"))
            head = f"  {'':{width}}{'RMSE':>10}{'±':>9}{'to simple':>11}{'±':>9}{'MAE':>10}"
            name, values = self.objective if self.objective is not None else ("", {})
            lines.append(head + (f"{name:>12}" if name else ""))
            for predictor in ranked(self.rmse, number):
                mark = "*" if predictor == MODEL else " "
                rmse, spread, mae = (each[predictor][number] for each in (self.rmse, self.rmse_spread, self.mae))
                line = f"{mark} {predictor:{width}}{rmse:10.4g}{spread:9.2g}"
                if predictor in self.difference:
                    line += f"{self.difference[predictor][number]:+11.2g}"
                    line += f"{self.difference_spread[predictor][number]:9.2g}"
                else:
                    line += " " * 20
                line += f"{mae:10.4g}"
                lines.append(line + (f"{values[predictor][number]:12.4g}" if predictor in values else ""))
        return "\n".join([*lines, *(f"note: {printable(note)}" for note in self.notes)])

    def _repr_html_(self) -> str:
        tables: list[str] = []
        shown = ((self.rmse, ".4g"), (self.rmse_spread, ".2g"), (self.difference, "+.2g"),
                 (self.difference_spread, ".2g"), (self.mae, ".4g"))  # fmt: skip
        heads = ("prediction", "RMSE", "±", "to simple", "±", "MAE")
        for number, (target, units) in enumerate(zip(self.targets, self.units, strict=True)):
            names = ranked(self.rmse, number)
            rows = [
                (name, *(f"{each[name][number]:{form}}" if name in each else "" for each, form in shown))
                for name in names
            ]
            of_period = f" of {self.period}" if self.period else ""
            caption = f"{target} ({units or 'no units'}), {self.num_samples} times{of_period}"
            tables.append(html_table(heads, rows, caption, bold=names.index(MODEL)))
        return "".join(tables) + (html_text("\n".join(self.notes)) if self.notes else "")

    def to_plain(self) -> dict[str, object]:
        """What JSON keeps; numbers that are not finite are None."""
        names = ("targets", "units", "num_samples", "rmse", "rmse_spread", "mae", "difference", "difference_spread",
                 "objective", "notes")  # fmt: skip
        return without_nan({name: getattr(self, name) for name in names} | {"scored": self.period})


def _roots(squared: np.ndarray) -> tuple[float, ...]:
    return tuple(map(float, np.sqrt(np.nanmean(squared, axis=0))))


def ranked(values: Mapping[str, Sequence[float | None]], number: int = 0) -> list[str]:
    """Names of predictors by one of their errors, the best first; those without a finite one are the last."""
    errors = {name: each[number] for name, each in values.items()}
    return sorted(errors, key=lambda name: math.inf if (error := errors[name]) is None or math.isnan(error) else error)


def make_table(
    sums: Mapping[str, ErrorSums],
    targets: tuple[str, ...],
    units: tuple[str, ...],
    objective: str | None,
    seed: int = 0,
    *,
    period: str = "",
    notes: tuple[str, ...] = (),
    simple: Sequence[str] = (),
) -> ScoreTable:
    """Reduces the errors of all samples: the mean over times is inside of the root."""
    squares = {name: np.concatenate(each.squared) for name, each in sums.items()}
    absolute = {name: np.concatenate(each.absolute) for name, each in sums.items()}
    rmse = {name: _roots(each) for name, each in squares.items()}
    spread = {name: tuple(map(float, bootstrap_spread(each, seed))) for name, each in squares.items()}
    mae = {name: tuple(map(float, np.nanmean(each, axis=0))) for name, each in absolute.items()}
    differences, difference_spreads = {}, {}
    if simple:
        best = [min(simple, key=lambda name, k=k: rmse[name][k]) for k in range(len(targets))]
        reference = np.stack([squares[name][:, k] for k, name in enumerate(best)], axis=1)
        for name, each in squares.items():
            differences[name] = tuple(rmse[name][k] - rmse[best[k]][k] for k in range(len(targets)))
            difference_spreads[name] = tuple(map(float, bootstrap_spread(each, seed, reference)))
        better = [name for name in rmse if any(rmse[name][k] < 0.99 * rmse.get(MODEL, rmse[name])[k]
                                               for k in range(len(targets)))]  # fmt: skip
        if better:
            notes = (*notes, f"better than the model by more than 1 % in this period: {', '.join(better)}")
    if not np.isfinite(list(rmse.values())).all():
        names = ", ".join(name for name, each in rmse.items() if not np.isfinite(each).all())
        notes = (*notes, f"errors that are not finite: {names}")
    chosen = None
    if objective is not None:
        values = {name: np.nanmean(np.concatenate(each.objective), axis=0) for name, each in sums.items()}
        chosen = objective, {name: tuple(map(float, each)) for name, each in values.items()}
    num_samples = len(next(iter(squares.values())))
    return ScoreTable(
        targets, units, num_samples, rmse, spread, mae, differences, difference_spreads, chosen, period, notes,
        squares, absolute,
    )  # fmt: skip


def bootstrap_spread(
    squared: np.ndarray, seed: int = 0, reference: np.ndarray | None = None, *, mean: bool = False
) -> np.ndarray:
    """Standard deviation of the root mean squared error over resampled blocks of consecutive times.

    Blocks, because neighbouring times err alike: a bootstrap of single times would be too sure.
    """
    count = len(squared)
    length = max(1, math.isqrt(count))
    generator = np.random.default_rng(seed)
    num_blocks = -(-count // length)
    roots = np.empty((_NUM_RESAMPLES, squared.shape[1]))
    for resample in range(_NUM_RESAMPLES):
        firsts = generator.integers(0, count, num_blocks)
        rows = (firsts[:, None] + np.arange(length)).ravel()[:count] % count
        roots[resample] = np.nanmean(squared[rows], axis=0)
        if not mean:
            roots[resample] = np.sqrt(roots[resample])
        if reference is not None:
            roots[resample] -= np.sqrt(np.nanmean(reference[rows], axis=0))
    with np.errstate(invalid="ignore"):
        # Of errors that are infinite there is none.
        return roots.std(axis=0)


_BATCH = 32


PLAIN = "plain net of the same size"
MEAN_OF_NETS = "mean of all nets"
MEAN_OF_ROWS = "average of all rows"
SMOE = "SMoE net"
TREES = "LightGBM"


@dataclass(frozen=True)
class ComparedBatch:
    """Truths of some samples and what is predicted for them."""

    truth: np.ndarray  # truths in the units of the targets, `(N, K, H, W)`; NaN where they have no value
    # predictions `(N, K, n, H, W)` of the `model`, and of the nets that were fitted beside it
    nets: dict[str, np.ndarray]
    simple: dict[str, np.ndarray]  # predictions `(N, K, n, H, W)` of simple models, by their names in a table
    inputs: np.ndarray  # inputs in their own units, `(N, C, H, W)`
    valid: np.ndarray  # times of the targets in seconds, `(N,)`


@dataclass(frozen=True)
class Scored:
    """Samples to score."""

    inputs: FieldSource  # source of the inputs
    targets: FieldSource  # source of the targets
    pairs: Pairs  # the samples
    period: str  # what they are, in words
    notes: tuple[str, ...]  # what must be said of them


def open_scored(fitted: Fitted, x: Any, y: Any, period: Any = None, open_options: OpenOptions | None = None) -> Scored:
    """Opens the samples of a period; without one, those of the test period if there are any, else all."""
    inputs = open_inputs(fitted, x, open_options)
    targets = _check_targets(fitted, y, open_options)
    pairs = pair_sources(inputs, targets, fitted.options)
    whole = Period(int(pairs.starts.min()), int(pairs.valid.max()) + 1, pairs.calendar)
    which = ""
    if period is None and "test" in fitted.bounds:
        # Data of other times than those of the fit have no sample there.
        test = fitted.period_of("test")
        period = test if samples_in(pairs.starts, pairs.valid, test).any() else None
    found = whole if period is None else parse_period(period, pairs.calendar, whole.start, whole.stop - 1)
    chosen = samples_in(pairs.starts, pairs.valid, found)
    if not chosen.any():
        raise DataError(f"no sample lies in the period {period}")
    pairs = pairs.select(chosen)
    for name in fitted.bounds:
        which = f"the {name} period, " if fitted.period_of(name) == found else which
    return Scored(inputs, targets, pairs, f"{which}{found}", _optimism(fitted, pairs))


def _optimism(fitted: Fitted, pairs: Pairs) -> tuple[str, ...]:
    """Notes on samples that the fit has seen."""
    others = {name: fitted.period_of(name) for name in fitted.bounds if name != "train"}
    is_train = remaining_samples(pairs.starts, pairs.valid, others)
    is_train &= samples_in(pairs.starts, pairs.valid, Period(*fitted.trained, fitted.calendar))
    is_validation = samples_in(pairs.starts, pairs.valid, fitted.period_of("validation"))
    chose = " and chose the net" if fitted.plain is not None else ""
    notes = []
    if is_train.any():
        notes.append(
            f"{int(is_train.sum())} of the {len(pairs)} times are of the training: these scores are optimistic"
        )
    if is_validation.any():
        notes.append(
            f"{int(is_validation.sum())} of the {len(pairs)} times are of the validation period, which stopped the "
            f"training{chose}: these scores are optimistic, keep a test period out"
        )
    return tuple(notes)


def compare_batches(fitted: Fitted, scored: Scored) -> Iterator[ComparedBatch]:
    """Yields samples with predictions for them; those with gaps are left out if the model was fitted to drop them."""
    inputs, targets, pairs = scored.inputs, scored.targets, scored.pairs
    statistics = fitted.statistics
    leads = lead_channel(pairs.inputs, inputs.lead_times, fitted.lead_scale)
    drops = fitted.options.missing == "drop"
    for first in range(0, len(pairs), _BATCH):
        chosen = np.arange(first, min(first + _BATCH, len(pairs)))
        before = read_inputs(fitted, inputs, pairs.inputs[chosen], allow_gaps=drops)
        truth = targets.read(pairs.targets[chosen])
        is_gap = np.isnan(truth) & statistics.target_mask
        truth[:, ~statistics.target_mask] = np.nan
        if drops:
            kept = ~(find_gaps(fitted, before).any(axis=(1, 2, 3)) | is_gap.any(axis=(1, 2, 3)))
            before, truth, chosen = before[kept], truth[kept], chosen[kept]
        if not len(before):
            continue
        times = (pairs.starts[chosen], pairs.valid[chosen], None if leads is None else leads[chosen])
        yield compare(fitted, before, truth, times, is_forecast=inputs.lead_times is not None)


def compare(fitted: Fitted, before: np.ndarray, truth: np.ndarray, times: Any, *, is_forecast: bool) -> ComparedBatch:
    """Predictions of the nets and the simple models for some samples."""
    rungs = fitted.ladder.predict(before, *times)
    values = {MODEL: model_values(fitted, before, times, rungs)}
    labels = {"net": fitted.net_kind, "plain": PLAIN}
    of_nets = {
        name: finished(fitted, net_values(fitted, net, before, times, rungs[fitted.base]))
        for name, net in fitted.nets.items()
    }
    values |= {labels[name]: each for name, each in of_nets.items()
               if name in labels and fitted.shares[name].min() < 1.0}  # fmt: skip
    if len(of_nets) > 1:
        values[MEAN_OF_NETS] = np.mean(list(of_nets.values()), axis=0)
    if fitted.trees is not None:
        found = fitted.spread.numbers(
            fitted.trees.predict(before, *times[1:]), times[1], fitted.options, fitted.trees.spread
        )
        values[TREES] = finished(fitted, found)
    names = {simple_name(fitted, name, is_forecast=is_forecast): name for name in rungs if name != COMBINATION}
    simple = {
        name: finished(fitted, fitted.spread.numbers(rungs[rung], times[1], fitted.options, fitted.spread_of(rung)))
        for name, rung in names.items()
    }
    if fitted.options.net not in SIMPLE:
        rows = [each for name, each in (values | simple).items() if name not in (MODEL, MEAN_OF_NETS)]
        values[MEAN_OF_ROWS] = np.mean(rows, axis=0)
    if fitted.options.transform is not None:
        before = before.copy()
        same = [number for number in fitted.statistics.reference if number >= 0]
        before[:, same] = fitted.inverse(before[:, same])
    return ComparedBatch(fitted.inverse(truth), values, simple, before, times[1])


def simple_name(fitted: Fitted, rung: str, *, is_forecast: bool) -> str:
    if rung == PERSISTENCE and (is_forecast or fitted.options.lead is None):
        return "raw input"
    if rung == CLIMATOLOGY:
        return f"climatology ({fitted.ladder.design.anomalies.basis.description})"
    return rung


def region_masks(fitted: Fitted, regions: Mapping[str, Any] | None) -> dict[str, np.ndarray]:
    """Pixels of each region, `(H, W)`, in the order of the model."""
    found = {}
    for name, given in (regions or {}).items():
        box = np.asarray(given)
        if box.shape == (4,) and box.dtype != bool:
            grid = fitted.grid
            if grid.kind != "latitude-longitude":
                raise DataError(f"the region {name} is a box, but the grid is a {grid.describe()}: give it as a mask")
            south, north, west, east = map(float, box)
            rows = (grid.rows >= south) & (grid.rows <= north)
            # From west eastwards, in any count of longitudes; a box of 360 degrees is the whole circle.
            columns = (grid.columns - west) % 360.0 <= ((east - west) % 360.0 or 360.0)
            mask = rows[:, None] & columns
        elif box.shape == fitted.grid.shape and box.dtype == bool:
            orientation = fitted.layout.orientation
            mask = box[orientation.row_order][:, orientation.column_order]
        else:
            raise OptionError(
                f"the region {name} must be (south, north, west, east), or a mask of {fitted.grid.shape} booleans, got "
                f"{box.dtype} of {box.shape}"
            )
        if not mask.any():
            raise DataError(f"the region {name} has no pixel of the grid, {fitted.grid.describe()}")
        found[name] = mask
    return found


def score_samples(
    fitted: Fitted, x: Any, y: Any, period: Any = None, open_options: OpenOptions | None = None,
    regions: Mapping[str, Any] | None = None,
) -> ScoreTable:  # fmt: skip
    """Scores of the samples that `open_scored` chooses."""
    masks = region_masks(fitted, regions)
    sums: dict[str, ErrorSums] = {}
    of_regions: dict[str, dict[str, list[np.ndarray]]] = {name: {} for name in masks}
    scored = open_scored(fitted, x, y, period, open_options)
    objective = {"gaussian": "CRPS", "quantiles": "pinball"}.get(fitted.options.objective)
    simple: Sequence[str] = ()
    valid: list[np.ndarray] = []
    covered: list[np.ndarray] = []
    for batch in compare_batches(fitted, scored):
        simple = list(batch.simple)
        valid.append(batch.valid)
        for name, values in (batch.nets | batch.simple).items():
            each = sums.setdefault(name, ErrorSums())
            middle = central(fitted.options, values)
            each.add(middle, batch.truth, fitted.pixel_weights)
            for region, mask in masks.items():
                squared = np.square(middle.astype(np.float64) - batch.truth)
                found = weighted_means(squared, batch.truth, fitted.pixel_weights * mask)
                of_regions[region].setdefault(name, []).append(found)
            if objective is not None:
                errors = errors_in_units(values, batch.truth, fitted.options)
                each.objective.append(weighted_means(errors, batch.truth, fitted.pixel_weights))
        if objective is not None:
            covered.append(_share_inside(fitted, batch))
    if not sums:
        raise DataError("every sample has missing values, which the model was fitted to drop")
    names = tuple(channel.name for channel in fitted.target_channels)
    units = tuple(channel.units for channel in fitted.target_channels)
    notes = (*scored.notes, *fitted.remarks(), *_coverage(covered, names, fitted.options))
    table = make_table(sums, names, units, objective, period=scored.period, notes=notes, simple=simple)
    roots = {
        region: {name: _roots(np.concatenate(parts)) for name, parts in each.items()}
        for region, each in of_regions.items()
    }
    return replace(table, valid=(np.concatenate(valid), fitted.calendar), regions=roots)


def _share_inside(fitted: Fitted, batch: ComparedBatch) -> np.ndarray:
    """Share of each sample and target between the lowest and the highest quantile, or 80 % of a normal distribution."""
    low, high = batch.nets[MODEL][:, :, 0], batch.nets[MODEL][:, :, -1]
    if fitted.options.objective == "gaussian":
        low, high = (low + float(ndtri(level)) * high for level in (0.1, 0.9))
    return weighted_means((batch.truth >= low) & (batch.truth <= high), batch.truth, fitted.pixel_weights)


def _coverage(covered: Sequence[np.ndarray], names: Sequence[str], options: RegressorOptions) -> list[str]:
    """How many values the intervals of the model cover, and a warning if these are far fewer or more than they say."""
    if not covered or (options.objective == "quantiles" and len(options.quantiles) < 2):
        return []
    said = 0.8 if options.objective == "gaussian" else options.quantiles[-1] - options.quantiles[0]
    notes = []
    for name, found in zip(names, np.nanmean(np.concatenate(covered), axis=0), strict=True):
        off = ": errors are unlike those of the fit, do not rely on the intervals" if abs(found - said) > 0.1 else ""
        notes.append(f"the {100 * said:.0f} % interval covers {100 * found:.0f} % of {name} in this period{off}")
    return notes


def _check_targets(fitted: Fitted, y: Any, open_options: OpenOptions | None) -> FieldSource:
    needed = without_lead(fitted.target_channels, fitted.options)
    dataset, _ = open_targets(y, fitted.options, list(dict.fromkeys(each.variable for each in needed)), open_options)
    variables = list(dict.fromkeys(channel.variable for channel in fitted.target_channels))
    dataset = transformed(dataset, variables, fitted.options.transform)
    targets = FieldSource(dataset, variables, "targets", like=fitted.target_channels)
    ours = [(channel.name, channel.units) for channel in fitted.target_channels]
    theirs = [(channel.name, channel.units) for channel in targets.channels]
    if [name for name, _ in ours] != [name for name, _ in theirs] or not all(
        are_same_units(one[1], other[1]) for one, other in zip(ours, theirs, strict=True)
    ):
        raise DataError(f"the targets are {_list(theirs)}, the model predicts {_list(ours)}: convert them")
    if targets.labels is None:
        raise DataError("the targets have no time dimension")
    difference = targets.grid.difference(fitted.grid)
    if difference is not None:
        raise DataError(f"the targets are on another grid than the model, {difference}")
    return targets


def _list(channels: list[tuple[str, str]]) -> str:
    return ", ".join(f"{name} in {units or '(no units)'}" for name, units in channels)


def write_scores(folder: Path, which: str, table: ScoreTable) -> None:
    """Writes `scores.json` and the same as text, `scores.txt`."""
    text = json.dumps({"period": which, **table.to_plain()}, indent=1, allow_nan=False) + "\n"
    write_atomically(folder / SCORES, lambda file: file.write(text.encode()))
    write_atomically(folder / "scores.txt", lambda file: file.write(f"{which}\n{table}\n".encode()))
