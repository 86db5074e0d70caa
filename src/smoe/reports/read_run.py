"""Reads a run of an experiment for its report."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from smoe.diagnostics import layers_by_gate, region_information
from smoe.experiments.experiment import Experiment, Notify
from smoe.experiments.open_run import OpenRun
from smoe.experiments.places import data_places
from smoe.experiments.published import PublishedResult
from smoe.experiments.registry import experiment_of
from smoe.experiments.report_parts import ReportParts
from smoe.experiments.runs import CheckpointName, open_run, read_recipe
from smoe.reports.error_maps import UNCHANGED, measure_errors, read_split
from smoe.reports.gate_maps import GateMap, read_gates
from smoe.reports.run_report import Monitor, RunReport
from smoe.reports.score_sheet import ScoreRow, ScoreSheet, published_rows, run_scores
from smoe.training.run_directory import RunDirectory, RunError


@dataclass(frozen=True)
class ReadOptions:
    """What to read of a run.

    Attributes:
        split: Split whose errors are shown; None for a report without data.
        checkpoint: The best weights by the validation split, or the last ones.
        data: Places of data that were moved, such as `store`; a run uses those that its recipe has.
    """

    split: Literal["test", "validation"] | None = "test"
    checkpoint: CheckpointName = "best"
    data: Mapping[str, Any] | None = None


def read_run(path: Path, label: str, options: ReadOptions, notify: Notify) -> RunReport:
    """Opens a run and measures what its report shows.

    Args:
        path: Run directory.
        label: Name of the run on the page.
        options: What to read.
        notify: Receives messages about what is being measured.

    Raises:
        RunError: If the directory holds no run, or a damaged one.
        CheckpointError: If it has no weights.
    """
    directory = RunDirectory(path)
    name, recipe = read_recipe(directory)
    history = directory.read_history()
    environment = read_environment(directory)
    places = set(data_places(recipe))
    moved = {place: value for place, value in (options.data or {}).items() if place in places}
    splits = () if options.split is None else (options.split,)
    run = open_run(path, options.checkpoint, splits, notify, moved)
    experiment = experiment_of(run.recipe)
    parts = experiment.report_parts(run, options.split, notify)
    unchanged, digest, sample = None, "", None
    maps = parts.error_maps
    if options.split is not None:
        notify(f"{label}: reading the {options.split} split")
        unchanged, digest, sample = read_split(run, options.split)
        if not maps and parts.classes is None:
            notify(f"{label}: measuring errors on the {options.split} split")
            maps = measure_errors(experiment.predict(run, options.split), parts.places, parts.targets)
    model = run.task.model.cpu().eval()
    gates = read_gates(model, parts.places, sample)
    of_task = None if run.task.regions is None else run.task.regions.cpu().numpy()
    regions = of_task if parts.regions is None else parts.regions
    plain = recipe.plain()
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
        error_maps=maps,
        classes=parts.classes,
        filters=parts.filters,
        command=repeating_command(environment),
        recipe={key: value for key, value in plain.items() if key != "experiment"},
        facts=_facts(environment, parts, options.split, digest),
        remarks=(*parts.remarks, *_region_remarks(regions, gates)),
        identity=json.dumps([recipe.experiment, options.split, _without_places(plain["data"], places)], sort_keys=True),
    )


def read_environment(directory: RunDirectory) -> dict[str, Any]:
    """Returns what environment.json of a run holds; empty if it has none.

    Raises:
        RunError: If the file is damaged.
    """
    if not directory.environment_file.is_file():
        return {}
    try:
        found = json.loads(directory.environment_file.read_text())
    except (ValueError, UnicodeDecodeError) as error:
        raise RunError(f"{directory.environment_file} is damaged: {error}") from error
    if not isinstance(found, dict):
        raise RunError(f"{directory.environment_file} is damaged: it must hold a JSON object")
    return found


def repeating_command(environment: Mapping[str, Any]) -> str:
    """Returns the command that a run was made with, for a shell; empty if it was made from Python."""
    command = environment.get("command")
    is_ours = isinstance(command, list) and bool(command) and command[0] in ("train", "fit", "reproduce")
    return shlex.join(["smoe", *map(str, command)]) if is_ours and command is not None else ""


def environment_facts(environment: Mapping[str, Any]) -> dict[str, str]:
    """Returns versions and machine of a run, by their names."""
    packages = environment.get("packages")
    facts = {name: str(version) for name, version in packages.items() if version} if isinstance(packages, dict) else {}
    for key in ("python", "system", "machine", "processor", "commit"):
        if environment.get(key):
            facts[key] = str(environment[key])
    return facts


def _score_sheet(
    run: OpenRun,
    name: str,
    history: list[dict[str, Any]],
    parts: ReportParts,
    experiment: Experiment,
    split: str | None,
    unchanged: Mapping[str, float] | None,
) -> ScoreSheet:
    words, values = run_scores(history)
    if split is not None and words != split:
        values, words = run.evaluate(split), split
    rows = [ScoreRow(name, "this run", values, is_own=True)] if values else []
    simple = dict(parts.baselines)
    if unchanged is not None:
        simple.setdefault(UNCHANGED, unchanged)
    rows += [ScoreRow(key, "here, same data", scores) for key, scores in simple.items()]
    if words == "test":
        found = parts.published if parts.published is not None else _published(experiment, name)
        rows += published_rows(found, name)
    known = {metric for metric in (values or {}) if "/" not in metric}
    rows = [
        replace(row, values={metric: value for metric, value in row.values.items() if row.is_own or metric in known})
        for row in rows
    ]
    return ScoreSheet(words, tuple(row for row in rows if row.values))


def _published(experiment: Experiment, name: str) -> dict[str, tuple[PublishedResult, ...]]:
    """Results of the recipes of the same data, by the first part of their names."""
    family = name.partition("/")[0]
    names = [other for other in experiment.recipes if other.partition("/")[0] == family]
    return {other: experiment.published(other) for other in names}


def _facts(environment: Mapping[str, Any], parts: ReportParts, split: str | None, digest: str) -> dict[str, str]:
    facts = environment_facts(environment) | dict(parts.data)
    if digest:
        facts[f"SHA-256 of the {split} split"] = digest
    return facts


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


def _without_places(data: Mapping[str, Any], places: set[str]) -> dict[str, Any]:
    """The data of a recipe without folders and the number of training samples: the same task to be scored on."""
    return {key: value for key, value in data.items() if key not in places and not key.startswith("num_train")}
