"""Reads models that `smoe fit` made for their report, and compares runs that can be compared."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from smoe._maps import Axis, Places
from smoe.errors import DataError
from smoe.gridded._times import show_time
from smoe.regression._fitted import Fitted, best_validation, central
from smoe.regression._nets import count_parameters
from smoe.regression._saved import load_model
from smoe.regression._scores import (
    MEAN_OF_NETS,
    MEAN_OF_ROWS,
    PLAIN,
    SCORES,
    ComparedBatch,
    ErrorSums,
    compare_batches,
    make_table,
    open_scored,
    ranked,
)
from smoe.reports.gate_maps import read_gates
from smoe.reports.run_report import Breakdown, ErrorMap, Example, Monitor, RunReport, ScoreRow, ScoreSheet
from smoe.training.run_directory import RunDirectory, RunError


@dataclass(frozen=True)
class FitData:
    """Data of a user's own to measure errors on."""

    inputs: tuple[str, ...]  # files of inputs
    targets: str  # files of targets
    open_options: Mapping[str, Any] = field(default_factory=dict)  # arguments of xarray.open_dataset


def read_fit(path: Path, label: str, data: FitData | None, notify: Callable[[str], None]) -> RunReport:
    """Opens a fitted model and measures what its report shows.

    Raises:
        DataError: If the folder holds no model or a damaged one, or the data are not those of the model.
    """
    fitted = load_model(path)
    training = RunDirectory(path / "training")
    environment = training.read_environment()
    which, sheet, notes = _read_scores(path, fitted)
    places = places_of(fitted)
    measured = None
    if data is not None:
        notify(f"{label}: measuring errors in the {which} period {fitted.periods[which]}")
        measured = _measure(fitted, data, which)
    facts = environment_facts(environment)
    facts |= {"grid": f"{fitted.grid.describe()} (hash {fitted.grid.hash})"}
    facts |= {f"{name} period": period for name, period in fitted.periods.items()}
    if measured is not None:
        facts[f"SHA-256 of the {which} targets"] = measured.digest
    net = "a net of your own" if fitted.has_own_net else f"a {fitted.options.net}"
    lead = f", lead {fitted.options.lead}" if fitted.options.lead else ""
    remarks = [f"{remark[:1].upper()}{remark[1:]}." for remark in notes or fitted.remarks()]
    if fitted.keeps_plain:
        remarks.append(f"The routing below is that of the {fitted.net_kind}, which does not predict.")
    return RunReport(
        label=label,
        title=f"{', '.join(channel.name for channel in fitted.target_channels)} by {net}{lead}",
        path=path,
        seed=fitted.options.seed,
        num_parameters=count_parameters(fitted.predictor),
        is_plain=False,
        checkpoint="best weights",
        scores=sheet,
        history=fitted.records.get("model", []),
        plain_history=fitted.records.get("plain", []),
        monitor=Monitor("validation/loss"),
        places=places,
        gates=read_gates(fitted.net, places, shown_shape=fitted.grid.shape, film=training.read_film()),
        regions=None,
        error_maps=() if measured is None else measured.maps,
        examples=() if measured is None else measured.examples,
        breakdowns=() if measured is None else measured.breakdowns,
        reliability=() if measured is None else measured.reliability,
        filters={},
        command=repeating_command(environment),
        recipe={
            "options": asdict(fitted.options),
            "inputs": [channel.name for channel in fitted.input_channels],
            "targets": [channel.name for channel in fitted.target_channels],
        },
        facts=facts,
        remarks=tuple(remarks),
        identity=json.dumps(["fit", fitted.grid.hash, fitted.periods.get(which), [*map(str, sheet.metrics)]]),
    )


def places_of(fitted: Fitted) -> Places:
    """Returns where the pixels of a fitted model lie, with the coordinates of the user's data."""
    grid = fitted.grid
    if grid.kind == "mesh":
        return Places("mesh", grid.shape[1:], coordinates=grid.rows)
    if grid.kind == "indexed":
        return Places("grid", grid.shape)
    if grid.kind == "latitude-longitude" and grid.closes_circle and np.ptp(grid.rows) > 60.0:
        return Places.globe(grid.rows, grid.columns)
    is_geographic = grid.kind in ("latitude-longitude", "curvilinear")
    if is_geographic:
        rows, columns = Axis("latitude", grid.rows, "degrees_north"), Axis("longitude", grid.columns, "degrees_east")
    else:
        names = fitted.layout.variables[0][2][-2:]
        units = [str(fitted.layout.coordinates.get(name, ((), None, {}))[2].get("units", "")) for name in names]
        rows, columns = Axis(names[0], grid.rows, units[0]), Axis(names[1], grid.columns, units[1])
    goes_up = bool(np.mean(grid.rows[0]) < np.mean(grid.rows[-1]))
    return Places("grid", grid.shape, rows, columns, goes_up, is_geographic)


def _read_scores(path: Path, fitted: Fitted) -> tuple[str, ScoreSheet, list[str]]:
    """The period of the stored scores, the scores, and the notes below them; without them, the best validation."""
    file = path / SCORES
    if not file.is_file():
        ours, plain = (best_validation(fitted.records.get(name, ())) for name in ("model", "plain"))
        rows = [] if ours is None else [ScoreRow("model", "this run", {"loss": ours}, is_own=True)]
        rows += [] if plain is None else [ScoreRow(PLAIN, "here, same data", {"loss": plain})]
        return "validation", ScoreSheet("validation", tuple(rows)), []
    try:
        stored: dict[str, Any] = json.loads(file.read_text())
        which, targets = str(stored["period"]), [str(name) for name in stored["targets"]]
        notes = [str(note) for note in stored.get("notes", ())]
        parts = {fitted.net_kind, PLAIN, MEAN_OF_NETS, MEAN_OF_ROWS}
        rows = [_score_row(name, stored, targets, parts) for name in ranked(stored["rmse"])]
        units = {
            f"{kind} {name}": str(unit)
            for kind in ("RMSE", "MAE")
            for name, unit in zip(targets, stored["units"], strict=True)
        }
    except (ValueError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise DataError(f"{file} is damaged ({type(error).__name__}: {error}); fit the model again") from error
    return which, ScoreSheet(which, tuple(rows), units), notes


def _score_row(name: str, stored: dict[str, Any], targets: list[str], parts: set[str]) -> ScoreRow:
    objective = stored.get("objective")
    errors = {"RMSE": stored["rmse"], "MAE": stored["mae"]} | (
        {} if objective is None else {objective[0]: objective[1]}
    )
    values = {
        f"{kind} {target}": float(of_all[name][number])
        for kind, of_all in errors.items()
        for number, target in enumerate(targets)
        # What is not finite is stored as null.
        if name in of_all and of_all[name][number] is not None
    }
    spreads, gaps = (
        {f"RMSE {target}": float(each) for target, each in zip(targets, stored[key][name], strict=True) if each}
        for key in ("rmse_spread", "difference_spread")
    )
    is_own = name == "model"
    source = "this run" if is_own else "a part of the fit" if name in parts else "here, same data"
    return ScoreRow(name, source, values, spreads, is_own, is_part=name in parts, gap_spreads=gaps)


# So many samples are shown as they are at most, of so many pixels together.
_NUM_EXAMPLES, _EXAMPLE_PIXELS = 12, 1 << 18
# Levels at which the forecasts of a mean and a spread are compared with truths.
_LEVELS = tuple(np.arange(5, 100, 10) / 100)


@dataclass(frozen=True)
class _Measured:
    """What the samples of a period tell of a model."""

    maps: tuple[ErrorMap, ...]  # root mean squared errors at each pixel
    examples: tuple[Example, ...]
    breakdowns: tuple[Breakdown, ...]
    reliability: tuple[Breakdown, ...]
    digest: str  # hash of the truths


def _measure(fitted: Fitted, data: FitData, which: str) -> _Measured:
    squared: dict[str, np.ndarray] = {}
    sums: dict[str, ErrorSums] = {}
    counts = np.zeros((len(fitted.target_channels), *fitted.grid.shape))
    digest = hashlib.sha256()
    scored = open_scored(fitted, list(data.inputs), data.targets, fitted.period_of(which), data.open_options)
    examples, valid, simple_names = list[Example](), list[np.ndarray](), set[str]()
    num_seen, shown = 0, shown_samples(len(scored.pairs), counts[0].size)
    below = 0.0
    for batch in compare_batches(fitted, scored):
        digest.update(np.ascontiguousarray(batch.truth, dtype="<f4").tobytes())
        counts += (~np.isnan(batch.truth)).sum(axis=0)
        simple_names |= batch.simple.keys()
        valid.append(batch.valid)
        below = below + _shares_below(fitted, batch)
        predictions = {name: central(fitted.options, each) for name, each in (batch.simple | batch.nets).items()}
        for name, values in predictions.items():
            error = np.square(values.astype(np.float64) - batch.truth)
            squared[name] = squared.get(name, 0.0) + np.nan_to_num(error).sum(axis=0)
            sums.setdefault(name, ErrorSums()).add(values, batch.truth, fitted.pixel_weights)
        numbers = [number for number in range(len(batch.truth)) if num_seen + number in shown]
        examples += [_example(fitted, batch, predictions["model"], number) for number in numbers]
        num_seen += len(batch.truth)
    if not squared:
        raise DataError("every sample has missing values, which the model was fitted to drop")
    simple = [name for name in squared if name in simple_names]
    with np.errstate(invalid="ignore", divide="ignore"):
        roots = {name: np.sqrt(total / counts) for name, total in squared.items()}
    # The net that was fitted beside the model: a plain one, or the SMoE net where the plain one was better.
    other = next((name for name in roots if name != "model" and name not in simple), "")
    # The simple prediction with the lowest error of all pixels together.
    best = min(simple, key=lambda name: float(np.nansum(squared[name])), default="")
    others = [name for name in (other, best) if name]
    maps = [
        ErrorMap(f"{channel.name}, RMSE", channel.units, roots["model"][k], {name: roots[name][k] for name in others})
        for k, channel in enumerate(fitted.target_channels)
    ]
    compared = {"this run": sums["model"]} | {name: sums[name] for name in others}
    breakdowns = _by_time(fitted, compared, np.concatenate(valid))
    reliability = _reliability(fitted, below / counts.sum(axis=(1, 2))[:, None]) if np.size(below) > 1 else ()
    return _Measured(tuple(maps), tuple(examples), breakdowns, reliability, digest.hexdigest())


def shown_samples(number: int, num_pixels: int) -> set[int]:
    """Returns which of so many samples a page shows as they are, spread evenly."""
    num_shown = max(1, min(_NUM_EXAMPLES, _EXAMPLE_PIXELS // num_pixels))
    return set(np.linspace(0, number - 1, num_shown).round().astype(int).tolist())


def _by_time(fitted: Fitted, sums: Mapping[str, ErrorSums], valid: np.ndarray) -> tuple[Breakdown, ...]:
    """Errors by month and hour, where there are several."""
    channels = fitted.target_channels
    names, units = tuple(channel.name for channel in channels), tuple(channel.units for channel in channels)
    table = replace(make_table(sums, names, units, None), valid=(valid, fitted.calendar))
    found = []
    for number, (name, unit) in enumerate(zip(names, units, strict=True)):
        for part in ("year", "month", "hour"):
            errors = table.by(part)
            values = {each: [of_all[each][number] for of_all in errors.values()] for each in sums}
            if len(errors) > 1:
                found.append(Breakdown(f"{name}, RMSE by {part}", part, tuple(errors), values, f" {unit}".rstrip()))
    return tuple(found)


def _shares_below(fitted: Fitted, batch: ComparedBatch) -> np.ndarray:
    """Numbers of truths below each quantile of their forecast, `(K, levels)`; one 0 for forecasts of one number."""
    objective, values, truth = fitted.options.objective, batch.nets["model"], batch.truth
    if objective == "quantiles":
        return np.moveaxis(truth[:, :, None] < values, 2, 0).sum(axis=(1, 3, 4)).T
    if objective != "gaussian":
        return np.zeros(1)
    from scipy.special import ndtr

    deviation = ndtr((truth - values[:, :, 0]) / values[:, :, 1])
    return np.stack([(deviation < level).sum(axis=(0, 2, 3)) for level in _LEVELS], axis=1)


def _reliability(fitted: Fitted, shares: np.ndarray) -> tuple[Breakdown, ...]:
    levels = fitted.options.quantiles if fitted.options.objective == "quantiles" else _LEVELS
    percent = tuple(100.0 * level for level in levels)
    return tuple(
        Breakdown(
            f"{channel.name}, truths below the quantile",
            "quantile of the forecast, %",
            percent,
            {"this run": 100.0 * each, "if it were reliable": percent},
            " %",
        )
        for channel, each in zip(fitted.target_channels, shares, strict=True)
    )


def _example(fitted: Fitted, batch: ComparedBatch, predicted: np.ndarray, number: int) -> Example:
    """The first target of a sample, beside the input of the same name, or the first one."""
    target, names = fitted.target_channels[0], [channel.name for channel in fitted.input_channels]
    which = names.index(target.name) if target.name in names else 0
    source = fitted.input_channels[which]
    input = (source.name, source.units, batch.inputs[number, which])
    time = show_time(int(batch.valid[number]), fitted.calendar)
    return Example(f"{target.name}, {time}", target.units, input, batch.truth[number, 0], predicted[number, 0])


def repeating_command(environment: Mapping[str, Any]) -> str:
    """Returns the command that a run was made with, for a shell; empty if it was made from Python."""
    command = environment.get("command")
    is_ours = isinstance(command, list) and bool(command) and command[0] in ("train", "fit", "reproduce")
    return shlex.join(["smoe", *map(str, command)]) if is_ours and command is not None else ""


def environment_facts(environment: Mapping[str, Any]) -> dict[str, str]:
    packages = environment.get("packages")
    facts = {name: str(version) for name, version in packages.items() if version} if isinstance(packages, dict) else {}
    for key in ("python", "system", "machine", "processor", "commit"):
        if environment.get(key):
            facts[key] = str(environment[key])
    return facts


def read_and_compare(paths: Sequence[Path], read: Callable[[Path, str], RunReport]) -> list[RunReport]:
    """Reads runs, and adds the errors of those without experts to those of the others.

    Raises:
        RunError: If the same directory is given twice, or is none.
    """
    for path in paths:
        if not path.is_dir():
            raise RunError(f"{path} is not a directory: give the directory of a run")
        if [other.resolve() for other in paths].count(path.resolve()) > 1:
            raise RunError(f"{path} is given twice: give each run once")
    reports = [read(path, label) for path, label in zip(paths, labels_of(paths), strict=True)]
    plain = [report for report in reports if report.is_plain]
    return [report if report.is_plain else with_plain(report, plain) for report in reports]


def labels_of(paths: Sequence[Path]) -> list[str]:
    """Returns a name for each directory: its own, with as many of its parents as tell them apart."""
    parts = [path.resolve().parts for path in paths]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def with_plain(report: RunReport, candidates: Sequence[RunReport]) -> RunReport:
    """Returns a run whose error maps know those of a plain net on the same data."""
    plain = next((other for other in candidates if other.identity == report.identity), None)
    known = {} if plain is None else {error.name: error.values for error in plain.error_maps}
    if plain is None or not any(error.name in known for error in report.error_maps):
        return report
    maps = tuple(
        replace(error, others={plain.label: known[error.name], **error.others}) if error.name in known else error
        for error in report.error_maps
    )
    return replace(report, error_maps=maps)
