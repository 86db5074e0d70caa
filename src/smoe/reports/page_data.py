"""What the script of a page draws: plain values, and arrays in one block."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import zip_longest
from typing import Any

import numpy as np

from smoe.diagnostics import match_experts, selections, shared_choices
from smoe.experiments.report_parts import Axis, Classes, ErrorMap, Places
from smoe.reports.array_pack import ArrayPack
from smoe.reports.expert_filters import ExpertFilters, as_picture
from smoe.reports.gate_maps import GateMap
from smoe.reports.run_report import RunReport, epochs_of
from smoe.training.run_directory import Record

# Above this number the pairing of experts, which is cubic, would take longer than all the rest.
_MAX_MATCHED = 512


@dataclass(frozen=True)
class Detail:
    """How much of the routing a page holds.

    Attributes:
        max_pixels: Largest number of pixels of a map or volume; of a larger one, every second or third row and column
            are shown.
        num_scored: Number of experts of a pixel whose scores are shown.
        max_gates: Largest number of gates of a run.
    """

    max_pixels: int
    num_scored: int
    max_gates: int


DETAILS = (Detail(65_536, 8, 64), Detail(16_384, 4, 32), Detail(4_096, 2, 16), Detail(1_024, 1, 8))
"""From much to little; a page has the first one with which it is small enough."""


def page_data(reports: Sequence[RunReport], detail: Detail) -> tuple[dict[str, Any], str]:
    """Returns the plain values of a page, and all arrays as one text.

    Args:
        reports: Runs to show.
        detail: How much of the routing the page holds.
    """
    pack = ArrayPack()
    runs = [_run_data(report, reports[0], detail, pack) for report in reports]
    data: dict[str, Any] = {"runs": runs}
    if any(report.places is not None and report.places.is_geographic for report in reports):
        data["coastlines"] = _coastlines(pack)
    return data, pack.encode()


def _run_data(report: RunReport, first: RunReport, detail: Detail, pack: ArrayPack) -> dict[str, Any]:
    shown = report.gates[: detail.max_gates]
    whole = report.places
    return {
        "label": report.label,
        "title": report.title,
        "monitor": {"key": report.monitor.key, "high": report.monitor.is_best_high},
        "curves": curves_of(report),
        "references": _references(report),
        "gates": [_gate_data(gate, number, first, detail, pack, report) for number, gate in enumerate(shown)],
        "hiddenGates": len(report.gates) - len(shown),
        "errors": [_error_data(error, whole, detail, pack) for error in report.error_maps],
        "classes": None if report.classes is None else _class_data(report.classes, pack),
        "knownFilters": [
            {"name": name, "pictures": [_picture(values)], "labels": [""]} for name, values in report.filters.items()
        ],
    }


def curves_of(report: RunReport) -> dict[str, Any]:
    """Returns the epochs of a run and its numbers by epoch; None where an epoch has no number."""
    records = _with_plain_losses(report.epochs, epochs_of(report.plain_history))
    names = dict.fromkeys(
        key
        for record in records
        for key, value in record.items()
        if key != "epoch" and isinstance(value, (int, float)) and not isinstance(value, bool)
    )
    values = {name: [_number(record.get(name)) for record in records] for name in names}
    epochs = [_number(record.get("epoch", number)) for number, record in enumerate(records, start=1)]
    return {"epochs": epochs, "values": values}


def _with_plain_losses(records: list[Record], plain: list[Record]) -> list[Record]:
    """The records with the losses of the plain net of the same epochs, and those of its further epochs."""
    losses = [
        {f"{key} of the plain net": record[key] for key in ("train/loss", "validation/loss") if key in record}
        for record in plain
    ]
    merged = [{**record, **extra} for record, extra in zip_longest(records, losses[: len(records)], fillvalue={})]
    further = range(len(records), len(losses))
    return [*merged, *({"epoch": number + 1, **losses[number]} for number in further)]


def _references(report: RunReport) -> list[dict[str, Any]]:
    """The paper's results for the recipe of the run, as lines in its curves."""
    rows = [row for row in report.scores.rows if row.is_same_recipe]
    return [
        {"metric": metric, "name": "paper, test", "value": value}
        for row in rows
        for metric, value in row.values.items()
    ]


def _gate_data(
    gate: GateMap, number: int, first: RunReport, detail: Detail, pack: ArrayPack, report: RunReport
) -> dict[str, Any]:
    thin = Thinning.of(gate.places, detail.max_pixels)
    choices, scores = thin.take(gate.choices), thin.take(gate.scores)
    num_scored = min(detail.num_scored, gate.num_selected)
    data = {
        "layers": list(gate.layers),
        "kind": gate.kind,
        "rule": gate.rule,
        "numExperts": gate.num_experts,
        "numSelected": gate.num_selected,
        "ofSample": gate.is_of_sample,
        "places": _place_data(gate.places, thin, pack),
        "selected": pack.add(np.packbits(selections(choices, gate.num_experts), axis=None)),
        "best": pack.add_indices(choices[:num_scored]),
        "scores": pack.add_numbers(scores[:num_scored]),
        "numScored": num_scored,
        "colours": pack.add(thin.take(gate.colours().T).T),
        "use": [_number(float(share)) for share in gate.use],
        "filters": None if gate.filters is None else _filter_data(gate.filters),
        "regions": None,
        "regionColours": None,
        "partners": None,
        "shared": None,
    }
    if report.regions is not None and report.regions.size == gate.places.num_pixels:
        data["regions"] = pack.add_indices(thin.take(report.regions[None]))
        data["regionColours"] = _colours_of_regions(gate, report.regions)
    other = first.gates[number] if report is not first and number < len(first.gates) else None
    if other is not None and _can_match(gate, other):
        data["partners"] = match_experts(gate.choices, other.choices, gate.num_experts).tolist()
        data["shared"] = shared_choices(gate.choices, other.choices, gate.num_experts)
    return data


def _colours_of_regions(gate: GateMap, regions: np.ndarray) -> list[int]:
    """For each region the expert that found it, whose colour it has; a number of its own where there is none."""
    num_regions = int(regions.max()) + 1
    num_colours = max(gate.num_experts, num_regions)
    if num_colours > _MAX_MATCHED:
        return list(range(num_regions))
    return match_experts(regions.reshape(1, -1), gate.choices[:1], num_colours)[:num_regions].tolist()


def _can_match(gate: GateMap, other: GateMap) -> bool:
    is_alike = gate.num_experts == other.num_experts and gate.places.shape == other.places.shape
    return is_alike and gate.num_experts <= _MAX_MATCHED


@dataclass(frozen=True)
class Thinning:
    """Which rows and columns of a large grid are shown.

    Attributes:
        shape: The grid.
        step: Every so many rows and columns are shown.
    """

    shape: tuple[int, ...]
    step: int

    @classmethod
    def of(cls, places: Places, max_pixels: int) -> Thinning:
        """Returns the smallest step for a number of pixels; the nodes of a mesh are all shown."""
        step = 1
        while places.kind != "mesh" and math.prod(-(-size // step) for size in places.shape) > max_pixels:
            step += 1
        return cls(places.shape, step)

    @property
    def new_shape(self) -> tuple[int, ...]:
        """Grid of the pixels that are shown."""
        return tuple(-(-size // self.step) for size in self.shape)

    def take(self, values: np.ndarray) -> np.ndarray:
        """Returns the values `(n, P)` of the pixels that are shown."""
        if self.step == 1:
            return values
        part = values.reshape(-1, *self.shape)[(slice(None), *(slice(None, None, self.step) for _ in self.shape))]
        return np.ascontiguousarray(part).reshape(len(values), -1)


def _place_data(places: Places, thin: Thinning, pack: ArrayPack) -> dict[str, Any]:
    data: dict[str, Any] = {
        "kind": places.kind,
        "shape": list(thin.new_shape),
        "step": thin.step,
        "up": places.goes_up,
        "geographic": places.is_geographic,
        "rows": _axis_data(places.rows, 0, thin, pack),
        "columns": _axis_data(places.columns, 1, thin, pack),
    }
    if places.kind == "mesh" and places.coordinates is not None:
        space = np.zeros((places.num_pixels, 3), np.float32)
        space[:, : places.coordinates.shape[1]] = places.coordinates
        data["coordinates"] = pack.add(space)
        data["flat"] = bool(np.ptp(space[:, 2]) == 0.0)
        data["triangles"] = None if places.triangles is None else pack.add_indices(places.triangles)
    return data


def _axis_data(axis: Axis | None, dimension: int, thin: Thinning, pack: ArrayPack) -> dict[str, Any] | None:
    if axis is None:
        return None
    values = axis.values[:: thin.step] if axis.values.ndim == 1 else axis.values[:: thin.step, :: thin.step]
    expected = (thin.new_shape[dimension],) if axis.values.ndim == 1 else thin.new_shape
    if values.shape != expected:
        raise ValueError(f"the coordinate {axis.name} has the shape {axis.values.shape} on a grid of {thin.shape}")
    reference = pack.add(values.astype(np.float32))
    return {"name": axis.name, "units": axis.units, "values": reference, "perPixel": values.ndim == 2}


def _error_data(error: ErrorMap, places: Places | None, detail: Detail, pack: ArrayPack) -> dict[str, Any]:
    where = places if places is not None else Places("grid", error.values.shape)
    thin = Thinning.of(where, detail.max_pixels)
    data: dict[str, Any] = {
        "name": error.name,
        "units": error.units,
        "places": _place_data(where, thin, pack),
        "values": pack.add_numbers(thin.take(error.values.reshape(1, -1))),
        "plainName": error.plain_name,
        "gain": None,
    }
    if error.plain is not None:
        plain = error.plain.reshape(-1)
        with np.errstate(invalid="ignore", divide="ignore"):
            # One pixel where the plain net is nearly perfect must not take the precision of all others.
            gain = np.maximum(100.0 * (1.0 - error.values.reshape(-1) / plain), -100.0)
        data["gain"] = pack.add_numbers(thin.take(gain[None]))
    return data


def _class_data(classes: Classes, pack: ArrayPack) -> dict[str, Any]:
    images = np.rint(255.0 * np.clip(classes.images, 0.0, 1.0)).astype(np.uint8)
    return {"names": list(classes.names), "shape": list(images.shape[1:]), "images": pack.add(images)}


def _filter_data(filters: ExpertFilters) -> dict[str, Any]:
    return {
        "numFilters": filters.num_filters,
        "experts": [
            {"expert": expert, "labels": list(labels), "pictures": [_picture(picture) for picture in pictures]}
            for expert, labels, pictures in zip(filters.experts, filters.labels, filters.pictures, strict=True)
        ],
    }


def _picture(values: np.ndarray) -> list[list[float | None]]:
    return [[_number(float(f"{value:.4g}")) for value in row] for row in as_picture(values)]


def _number(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return value if is_number else None


def _coastlines(pack: ArrayPack) -> dict[str, Any]:
    """The outline of the land, in hundredths of a degree: Natural Earth at 1:110 million, in the public domain."""
    file = resources.files("smoe").joinpath("views", "coastlines.npz")
    with file.open("rb") as opened, np.load(opened) as stored:
        return {
            "points": pack.add(stored["points"].astype(np.int16)),
            "ends": pack.add(stored["ends"].astype(np.int32)),
        }
