"""Reads runs of experiments for their report."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler

from smoe.diagnostics import layers_by_gate, region_information
from smoe.regression import is_model_folder
from smoe.reports.gate_maps import GateMap, read_gates
from smoe.reports.read_fit import (
    FitData,
    environment_facts,
    read_fit,
    repeating_command,
    shown_samples,
)
from smoe.reports.run_report import Breakdown, ErrorMap, Example, Monitor, Places, RunReport, ScoreRow, ScoreSheet
from smoe.training.run_directory import Record, RunDirectory
from smoe.training.task import MetricSums, load_batches
from smoe_paper.experiments.experiment import Experiment, Notify, ReportParts, experiment_of
from smoe_paper.experiments.runs import CheckpointName, check_paths, data_paths, open_run, read_recipe
from smoe_paper.experiments.tables import PublishedResult
from smoe_paper.experiments.task import BatchedSamples, OpenRun


@dataclass(frozen=True)
class ReadOptions:
    """What to read of a run, and the paths of data that were moved, of which it uses those that its recipe has."""

    split: Literal["test", "validation"] | None = "test"
    checkpoint: CheckpointName = "best"
    data: Mapping[str, Any] | None = None


def read_run(
    path: Path,
    label: str,
    options: ReadOptions,
    notify: Notify,
    fit_data: Mapping[Path, FitData] | None = None,
) -> RunReport:
    """Opens a run or a fitted model and measures what its report shows."""
    if is_model_folder(path):
        return read_fit(path, label, (fit_data or {}).get(path), notify)
    directory = RunDirectory(path)
    check_paths(directory, {})
    name, recipe = read_recipe(directory)
    history = directory.read_history()
    environment = directory.read_environment()
    paths = data_paths(recipe)
    moved = {name: value for name, value in (options.data or {}).items() if name in paths}
    splits = () if options.split is None else (options.split,)
    run = open_run(path, options.checkpoint, splits, notify, moved)
    experiment = experiment_of(run.recipe)
    parts = experiment.report_parts(run, options.split, notify)
    unchanged, digest, sample = None, "", None
    measured = Measured()
    if options.split is not None:
        notify(f"{label}: reading the {options.split} split")
        unchanged, digest, sample = read_split(run, options.split)
        notify(f"{label}: measuring errors on the {options.split} split")
        samples = run.task.splits[options.split]
        assert isinstance(samples, BatchedSamples)
        measured = measure(run.predict(options.split), parts.places, parts.targets, samples)
    model = run.task.model.cpu().eval()
    gates = read_gates(model, parts.places, sample, film=directory.read_film())
    of_task = None if run.task.regions is None else run.task.regions.cpu().numpy()
    regions = of_task if parts.regions is None else parts.regions
    plain = recipe.plain()
    facts = environment_facts(environment) | dict(parts.data)
    facts |= {f"SHA-256 of the {options.split} split": digest} if digest else {}
    # Neither folders nor the number of training samples make another task to be scored on.
    same_task = {key: v for key, v in plain["data"].items() if key not in paths and not key.startswith("num_train")}
    return RunReport(
        label=label,
        title=name,
        path=path,
        seed=recipe.seed,
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        is_plain=not any(gate.num_experts > 1 for gate in layers_by_gate(model)),
        checkpoint=f"{options.checkpoint} weights",
        scores=_score_sheet(run, name, history, parts, experiment, options.split, unchanged),
        history=history,
        monitor=Monitor(f"validation/{recipe.training.monitor}", recipe.training.monitor_mode == "max"),
        places=parts.places,
        gates=gates,
        regions=None if regions is None else regions.ravel(),
        error_maps=measured.maps,
        examples=measured.examples,
        breakdowns=measured.breakdowns,
        filters=parts.filters,
        command=repeating_command(environment),
        recipe={key: value for key, value in plain.items() if key != "experiment"},
        facts=facts,
        remarks=(*parts.remarks, *_region_remarks(regions, gates)),
        identity=json.dumps([recipe.experiment, options.split, same_task], sort_keys=True),
    )


def read_split(run: OpenRun, split: str) -> tuple[dict[str, float] | None, str, Tensor]:
    task, plan = run.task, run.recipe.training
    samples = task.splits[split]
    batches = BatchSampler(range(len(samples)), plan.evaluation_batch_size, drop_last=False)
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


@dataclass(frozen=True)
class Measured:
    """What the samples of a split tell of a run; empty where its targets are not fields."""

    maps: tuple[ErrorMap, ...] = ()  # root mean squared error of each target at each pixel
    examples: tuple[Example, ...] = ()
    breakdowns: tuple[Breakdown, ...] = ()  # errors by month and hour


def measure(
    batches: Iterable[tuple[Tensor, Tensor]],
    places: Places | None,
    targets: Sequence[tuple[str, str]],
    samples: BatchedSamples,
) -> Measured:
    """Compares predictions with truths, all samples of a split in order."""
    squared, counts, weights = torch.zeros(0), torch.zeros(0), torch.ones(1)
    means, names, shown, examples, num_seen = list[Tensor](), targets, set[int](), list[Example](), 0
    for prediction, truth in batches:
        grid = tuple(truth.shape[2:])
        if prediction.shape != truth.shape or not 1 <= len(grid) <= 3 or not truth.is_floating_point():
            return Measured()
        if places is not None and places.num_pixels != int(np.prod(grid)):
            return Measured()
        error = (prediction.double() - truth.double()).square().cpu().flatten(2)
        known, error = ~error.isnan(), error.nan_to_num(0.0)
        if not squared.numel():
            shown = shown_samples(samples.num_in_time, error.shape[2])
            squared, counts = error[0] * 0, error[0] * 0
            if places is not None and places.areas is not None:
                weights = torch.from_numpy(places.areas.flatten())
            names = targets if len(targets) == len(squared) else [(f"target {k}", "") for k in range(len(squared))]
        squared, counts = squared + error.sum(dim=0), counts + known.sum(dim=0)
        means.append((error * weights).sum(2) / (known * weights).sum(2))
        for number in sorted(shown & set(range(num_seen, num_seen + len(truth)))):
            name, input_name, field = samples.shown(number)
            both = (each[number - num_seen, 0].cpu().numpy() for each in (truth, prediction))
            examples.append(Example(name, names[0][1], (input_name, names[0][1], field.numpy()), *both))
        num_seen += len(truth)
    maps = tuple(
        ErrorMap(f"{name}, RMSE", units, root)
        for (name, units), root in zip(names, (squared / counts).sqrt().numpy(), strict=True)
    )
    return Measured(maps, tuple(examples), _by_time(torch.cat(means).numpy(), samples.times, names))


def _by_time(means: np.ndarray, times: np.ndarray | None, names: Sequence[tuple[str, str]]) -> tuple[Breakdown, ...]:
    """Errors by month and hour, where there are several, from mean squared errors of samples `(N, K)`."""
    if times is None:
        return ()
    months, hours = (times.astype(f"datetime64[{unit}]").astype(int) for unit in "Mh")
    found = []
    for by, values in (("month", months % 12 + 1), ("hour", hours % 24)):
        steps = np.unique(values)
        roots = np.sqrt([means[values == step].mean(axis=0) for step in steps])
        found += [
            Breakdown(f"{name}, RMSE by {by}", by, tuple(steps.tolist()), {"this run": of_one.tolist()}, f" {unit}")
            for (name, unit), of_one in zip(names, roots.T, strict=True)
            if len(steps) > 1
        ]
    return tuple(found)


def _score_sheet(
    run: OpenRun,
    name: str,
    history: list[dict[str, Any]],
    parts: ReportParts,
    experiment: Experiment,
    split: str | None,
    unchanged: Mapping[str, float] | None,
) -> ScoreSheet:
    words, values = _run_scores(history)
    if split is not None and words != split:
        values, words = run.evaluate(split), split
    rows = [ScoreRow(name, "this run", values, is_own=True)] if values else []
    simple = dict(parts.baselines)
    if unchanged is not None:
        simple.setdefault("input unchanged", unchanged)
    rows += [ScoreRow(key, "here, same data", scores) for key, scores in simple.items()]
    if words == "test":
        # Those of the recipes of the same data, by the first part of their names.
        same = [other for other in experiment.recipes if other.partition("/")[0] == name.partition("/")[0]]
        rows += _published_rows(parts.published or {other: experiment.published(other) for other in same}, name)
    known = {metric for metric in (values or {}) if "/" not in metric}
    rows = [
        replace(row, values={metric: value for metric, value in row.values.items() if row.is_own or metric in known})
        for row in rows
    ]
    units = {"within_1_percent": "% of the pixels", "accuracy": "%"}
    units |= {f"rmse_{target}": unit for target, unit in parts.targets if unit}
    return ScoreSheet(words, tuple(row for row in rows if row.values), units)


def _run_scores(history: Sequence[Record]) -> tuple[str, dict[str, float]]:
    """What the record of a run states: its scores on the test split, or its last ones on validation."""
    for prefix in ("test/", "validation/"):
        for record in reversed(history):
            found = {
                key.removeprefix(prefix): float(value)
                for key, value in record.items()
                if key.startswith(prefix) and isinstance(value, (int, float)) and not isinstance(value, bool)
            }
            if found:
                return ("test" if prefix == "test/" else f"validation, epoch {record.get('epoch', '?')}"), found
    return "", {}


def _published_rows(published: Mapping[str, Sequence[PublishedResult]], own: str) -> list[ScoreRow]:
    rows = [
        ScoreRow(
            f"{name} (this recipe)" if name == own else name,
            f"published, {results[0].source}",
            {result.metric: result.mean for result in results},
            {result.metric: result.spread for result in results},
            is_published=True,
            is_same_recipe=name == own,
        )
        for name, results in published.items()
        if results
    ]
    return sorted(rows, key=lambda row: not row.is_same_recipe)


def _region_remarks(regions: np.ndarray | None, gates: tuple[GateMap, ...]) -> list[str]:
    if regions is None:
        return []
    shares = [
        region_information(gate.choices, regions.ravel(), gate.num_experts)
        for gate in gates
        if gate.places.num_pixels == regions.size
    ]
    if not shares:
        return []
    return [f"The routing holds {100 * max(shares):.1f} % of the information about the known regions of the pixels."]
