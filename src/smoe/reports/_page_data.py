"""What the script of a page draws: plain values, and arrays in one block."""

from __future__ import annotations

import base64
import gzip
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np

from smoe._maps import Places, coordinate_texts, make_views, take, thinned
from smoe._notebook import expert_colours
from smoe.diagnostics import match_experts, neighbour_agreement, shared_choices
from smoe.reports.gate_maps import GateMap
from smoe.reports.run_report import Breakdown, ErrorMap, Example, RunReport, epochs_of, show_number
from smoe.training.run_directory import Record

# Above this number the pairing of experts, which is cubic, would take longer than all the rest.
_MAX_MATCHED = 512
# Names that the page's script knows, of the types that it reads without conversion.
_TYPES = {"uint8": "u8", "uint16": "u16", "int32": "i32"}
_ROUTING_CHARTS = {
    "Choices that changed": ("changed", "changed_since_start", "reordered"),
    "Use, certainty, information": ("experts_in_use", "certainty", "region_information"),
}


def _ramp(stops: str) -> np.ndarray:
    """A palette of 256 colours between some, `(256, 3)`, uint8."""
    known = np.frombuffer(bytes.fromhex(stops), np.uint8).reshape(-1, 3)
    places = np.linspace(0, len(known) - 1, 256)
    return np.stack([np.interp(places, np.arange(len(known)), part) for part in known.T], axis=1).astype(np.uint8)


VIRIDIS = _ramp("440154 472c7a 3b518b 2c718e 21908d 27ad81 5cc863 aadc32 fde725")
DIVERGING = _ramp("a64608 e0823c f7c496 f5f5f5 a0c8e6 468cc8 08468c")


@dataclass(frozen=True)
class Detail:
    """How much of the routing a page holds."""

    max_pixels: int  # largest number of pixels of a map or volume
    num_scored: int  # number of experts of a pixel whose scores are shown
    max_gates: int  # largest number of gates of a run
    film_choices: int  # number of choices of the film of a gate, about


DETAILS = (
    Detail(65_536, 8, 64, 1 << 21),
    Detail(16_384, 4, 32, 1 << 18),
    Detail(4_096, 2, 16, 1 << 16),
    Detail(1_024, 1, 8, 0),
)
"""From much to little; a page has the first one with which it is small enough."""


class ArrayPack:
    """Collects arrays and encodes them as text that can stand in HTML; equal arrays are kept once."""

    def __init__(self) -> None:
        self._places: dict[bytes, int] = {}
        self._size = 0

    def add(self, values: np.ndarray) -> dict[str, Any]:
        """Adds an array of one of the types uint8, uint16 and int32 and returns its reference for the script."""
        if values.dtype.name not in _TYPES:
            raise ValueError(f"an array of a page must have one of the types {', '.join(_TYPES)}, got {values.dtype}")
        content = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<"), copy=False).tobytes()
        # Typed arrays of JavaScript begin at multiples of their size.
        content += bytes(-len(content) % 4)
        if content not in self._places:
            self._places[content] = self._size
            self._size += len(content)
        return {"at": self._places[content], "count": int(values.size), "type": _TYPES[values.dtype.name]}

    def add_numbers(self, values: np.ndarray) -> dict[str, Any]:
        """Adds numbers with a precision of 1/65534 of their range; those that are not finite are missing."""
        numbers = np.asarray(values, np.float64).ravel()
        is_known = np.isfinite(numbers)
        low, high = (float(numbers[is_known].min()), float(numbers[is_known].max())) if is_known.any() else (0.0, 0.0)
        step = (high - low) / 65534.0
        levels = np.full(numbers.shape, 65535, np.uint16)
        levels[is_known] = 0 if step == 0.0 else np.rint((numbers[is_known] - low) / step).astype(np.uint16)
        return {**self.add(levels), "low": low, "step": step}

    def add_indices(self, values: np.ndarray, *, as_steps: bool = False) -> dict[str, Any]:
        """Adds whole numbers from 0 on in the smallest type that holds them; neighbours that are alike as steps."""
        largest = int(values.max()) if values.size else 0
        small = values.ravel().astype(np.uint8 if largest < 256 else np.uint16 if largest < 65536 else np.int32)
        return {**self.add(np.diff(small, prepend=small.dtype.type(0))), "steps": True} if as_steps else self.add(small)

    def encode(self) -> str:
        return base64.b64encode(gzip.compress(b"".join(self._places), compresslevel=9, mtime=0)).decode()


def page_data(reports: Sequence[RunReport], detail: Detail) -> tuple[dict[str, Any], str]:
    """Returns the plain values of a page, and all arrays as one text."""
    maker = _Maker(reports, detail)
    runs = [maker.run_data(report) for report in reports]
    num_colours = 1 + max((gate.num_experts for report in reports for gate in report.gates), default=1)
    num_colours = max([num_colours, *(int(one.regions.max()) + 1 for one in reports if one.regions is not None)])
    curves = {report.label: curves_of(report) for report in reports}
    keys = dict.fromkeys(key for run in curves.values() for key in run["values"] if key != "nonfinite_errors")
    watched = reports[0].monitor.key
    together = [
        _chart(
            key, {label: (run["epochs"], run["values"][key]) for label, run in curves.items() if key in run["values"]}
        )
        for key in sorted(keys, key=lambda key: key != watched)
    ]
    data = {
        "runs": runs,
        "places": maker.places,
        "together": together,
        "experts": expert_colours(num_colours).tolist(),
        "palettes": {"viridis": VIRIDIS.tolist(), "diverging": DIVERGING.tolist()},
    }
    return data, maker.pack.encode()


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


class _Maker:
    """Makes the data of runs; places of several gates and maps are made once."""

    def __init__(self, reports: Sequence[RunReport], detail: Detail) -> None:
        self.first = reports[0]
        self.detail = detail
        self.pack = ArrayPack()
        self.places: list[dict[str, Any]] = []
        self._numbers: dict[object, int] = {}

    def run_data(self, report: RunReport) -> dict[str, Any]:
        gates = report.gates[: self.detail.max_gates]
        curves = curves_of(report)
        regions = [_by_region(error, report.places) for error in report.error_maps]
        return {
            "label": report.label,
            "charts": {
                "curves": _score_charts(report, curves),
                "routing-epochs": _routing_charts(report, curves),
                "parts": [_breakdown(each) for each in (*report.breakdowns, *regions) if each is not None],
                "reliability": [_breakdown(each) for each in report.reliability],
            },
            "gates": [self._gate_data(gate, index, report) for index, gate in enumerate(gates)],
            "errors": [self._error_data(error, report.places) for error in report.error_maps],
            "examples": [self._example_data(example, report.places) for example in report.examples],
        }

    def _place_data(self, places: Places) -> tuple[int, int]:
        """The number of some places in the page, and every how many rows and columns are shown."""
        axes = [None if axis is None else axis.values.tobytes() for axis in (places.rows, places.columns)]
        key = (places.kind, places.shape, places.goes_up, *axes, id(places.coordinates))
        if key not in self._numbers:
            self._numbers[key] = len(self.places)
            self.places.append(self._new_place_data(places))
        number = self._numbers[key]
        return number, self.places[number]["step"]

    def _new_place_data(self, places: Places) -> dict[str, Any]:
        shown, step = thinned(places, self.detail.max_pixels)
        views, start = make_views(shown)
        form = {1: "pixel #", 2: "row #, column #", 3: "voxel #, #, #"}[len(shown.shape)]
        texts, lines = None, None
        if places.coordinates is not None:
            form = "node # at @"
            lines = [", ".join(f"{value:.4g}" for value in node) for node in places.coordinates.tolist()]
        elif shown.rows is not None and shown.columns is not None:
            form = f"@ ({form})"
            texts = [
                coordinate_texts(axis, places.is_geographic, is_row)
                for axis, is_row in ((shown.rows, True), (shown.columns, False))
            ]
            if not places.is_geographic:
                texts[0] = [f"{text}," for text in texts[0]]
            if shown.rows.values.ndim == 2:
                texts, lines = None, [" ".join(pair) for pair in zip(*texts, strict=True)]
        return {
            "shape": list(shown.shape),
            "step": step,
            "form": form,
            "texts": texts,
            "lines": None if lines is None else self.pack.add(np.frombuffer("\n".join(lines).encode(), np.uint8)),
            "start": start,
            "views": [
                {
                    "name": view.name,
                    "width": view.cells.shape[1],
                    "height": view.cells.shape[0],
                    "ratio": view.ratio or view.cells.shape[1] / view.cells.shape[0],
                    "cells": self.pack.add_indices(view.cells + 1, as_steps=True),
                    "light": None if view.light is None else self.pack.add(view.light),
                    "ticks": view.ticks,
                }
                for view in views
            ],
        }

    def _gate_data(self, gate: GateMap, number: int, report: RunReport) -> dict[str, Any]:
        place, step = self._place_data(gate.places)
        choices, scores = (take(values, gate.places.shape, step) for values in (gate.choices, gate.scores))
        num_scored = min(self.detail.num_scored, gate.num_selected)
        served = gate.layers[0] if len(gate.layers) == 1 else f"{len(gate.layers)} layers"
        words = f"{gate.num_selected} of {gate.num_experts} experts at each pixel, {gate.kind} of {served}"
        caption = [f"{words}, rule {gate.rule}"]
        other = self.first.gates[number] if report is not self.first and number < len(self.first.gates) else None
        partners, shared, regions, region_colours = None, None, None, None
        key = (gate.num_experts, gate.places.shape)
        if other is not None and key == (other.num_experts, other.places.shape) and gate.num_experts <= _MAX_MATCHED:
            partners = match_experts(gate.choices, other.choices, gate.num_experts).tolist()
            shared = shared_choices(gate.choices, other.choices, gate.num_experts)
            caption.append(f"{100 * shared:.3g} % of the choices as in {self.first.label}")
        if len(gate.places.shape) == 2 and min(gate.places.shape) > 1 and gate.places.kind != "mesh":
            on_grid = gate.choices.reshape(gate.num_selected, *gate.places.shape)
            agreement = float(neighbour_agreement(on_grid, gate.num_experts).mean())
            chance = float(np.square(gate.use).sum()) / gate.num_selected
            is_noise = agreement < chance + 0.1 * (1.0 - chance)
            caption.append(
                f"neighbouring pixels share {100 * agreement:.3g} % of their experts, {100 * chance:.3g} % by chance"
                + (": there are no regions" if is_noise else "")
            )
        if gate.is_of_sample:
            caption.append("the gate depends on its input: choices for the first sample")
        if step > 1:
            caption.append(f"one of every {step} rows and columns is shown")
        if report.regions is not None and report.regions.size == gate.places.num_pixels:
            regions = self.pack.add_indices(take(report.regions[None], gate.places.shape, step))
            region_colours = _colours_of_regions(gate, report.regions)
        return {
            "name": gate.layers[0] if len(gate.layers) == 1 else f"{gate.layers[0]} to {gate.layers[-1]}",
            "caption": caption,
            "numExperts": gate.num_experts,
            "numSelected": gate.num_selected,
            "places": place,
            "numPixels": choices.shape[1],
            "frames": [
                (name, self.pack.add_indices(take(frame, gate.places.shape, step)))
                for name, frame in [*self._film(gate), ("", gate.choices)]
            ],
            "scores": self.pack.add_numbers(scores[:num_scored]),
            "numScored": num_scored,
            "colourMap": [values.round(2).tolist() for values in gate.colour_map()],
            "embedding": None
            if gate.embedding is None
            else self.pack.add(np.ascontiguousarray(take(gate.embedding.T, gate.places.shape, step).T)),
            "use": [_number(float(share)) for share in gate.use],
            "regions": regions,
            "regionColours": region_colours,
            "partners": partners,
            "shared": shared,
        }

    def _film(self, gate: GateMap) -> list[tuple[str, np.ndarray]]:
        """As many frames, from the start on, as leave the page small."""
        every = max(1, math.ceil(len(gate.film) * gate.choices.size / max(1, self.detail.film_choices)))
        return [item for number, item in enumerate(gate.film.items()) if number % every == 0]

    def _error_data(self, error: ErrorMap, places: Places | None) -> dict[str, Any]:
        """The error, and the gain over each other prediction; each with what its colours mean."""
        where = places if places is not None else Places("grid", error.values.shape)
        place, step = self._place_data(where)
        values = take(error.values.reshape(1, -1), where.shape, step)[0]
        # Some pixels far off must not make all others look the same: the colours end at quantiles.
        low, median, high = _quantiles(values, 0.01, 0.5, 0.99)
        units = f" {error.units}" if error.units else ""
        largest = show_number(float(np.nanmax(values, initial=-np.inf)))
        words = f"Error at each pixel over all samples of the split; the median is {show_number(median)}{units}, "
        maps = [self._map(error.name, error.name, values, (low, high, error.units, "viridis"))]
        maps[0]["words"] = f"{words}the largest {largest}{units}."
        for name, other in error.others.items():
            theirs = take(other.reshape(1, -1), where.shape, step)[0]
            with np.errstate(invalid="ignore", divide="ignore"):
                # One pixel where the other is nearly perfect must not take the precision of all others.
                gain = np.maximum(100.0 * (1.0 - values / theirs), -100.0)
            low, median, high = _quantiles(gain, 0.02, 0.5, 0.98)
            reach, better = max(abs(low), abs(high), 0.1), (gain > 0).sum() / max(1, np.isfinite(gain).sum())
            maps.append(self._map(f"Gain over {name}", f"gain over {name}", gain, (-reach, reach, "%", "diverging")))
            maps[-1]["words"] = (
                f"Share of the error of {name} that this run removes at each pixel, at least -100 %; blue is better. "
                f"It is better at {100 * better:.3g} % of the pixels; the median gain is {median:.3g} %."
            )
        return {"name": error.name, "places": place, "maps": maps}

    def _example_data(self, example: Example, places: Places | None) -> dict[str, Any]:
        """Input, truth and prediction of a sample in the colours of the truth, and the error."""
        where = places if places is not None else Places("grid", example.truth.shape)
        place, step = self._place_data(where)
        input_name, input_units, given = example.input
        fields = [
            take(each.reshape(1, -1), where.shape, step)[0] for each in (given, example.truth, example.prediction)
        ]
        wrong = fields[2] - fields[1]
        low, high = _quantiles(fields[1], 0.005, 0.995)
        # An input in the units of the target is of the same kind.
        own = (low, high) if input_units == example.units else tuple(_quantiles(fields[0], 0.005, 0.995))
        reach = max(*map(abs, _quantiles(wrong, 0.01, 0.99)), 1e-12)
        shown = [
            (f"Input: {input_name}", fields[0], (*own, input_units, "viridis")),
            ("Truth", fields[1], (low, high, example.units, "viridis")),
            ("Prediction", fields[2], (low, high, example.units, "viridis")),
            ("Prediction minus truth", wrong, (-reach, reach, example.units, "diverging")),
        ]
        maps = [self._map(head, head.lower(), values, colours) | {"words": ""} for head, values, colours in shown]
        return {"name": example.name, "places": place, "maps": maps}

    def _map(self, head: str, name: str, values: np.ndarray, colours: tuple[float, float, str, str]) -> dict[str, Any]:
        keys = ("low", "high", "units", "palette")
        numbers = {"head": head, "name": name, "values": self.pack.add_numbers(values)}
        return numbers | dict(zip(keys, colours, strict=True))


def _score_charts(report: RunReport, curves: dict[str, Any]) -> list[dict[str, Any]]:
    """A chart for each score, with those of its parts and of both splits; the one that decides first."""
    groups: dict[str, dict[str, Any]] = {}
    for key, values in curves["values"].items():
        if not key.startswith("routing/") and key != "nonfinite_errors":
            base = key.removeprefix("train/").removeprefix("validation/").split("/")[0]
            groups.setdefault(base.removesuffix(" of the plain net"), {})[key] = curves["epochs"], values
    watched = report.monitor.key.removeprefix("validation/").split("/")[0]
    # The paper's results for the recipe of the run are lines.
    published = [row.values for row in report.scores.rows if row.is_same_recipe]
    return [
        {
            **_chart(base, groups[base]),
            "references": [["paper, test", values[base]] for values in published if base in values],
        }
        for base in sorted(groups, key=lambda base: base != watched)
    ]


def _routing_charts(report: RunReport, curves: dict[str, Any]) -> list[dict[str, Any]]:
    # With one expert at each pixel there is no order that could change.
    is_single = bool(report.gates) and all(gate.num_selected == 1 for gate in report.gates)
    found = {
        title: {
            name.replace("_", " "): (curves["epochs"], [None if v is None else 100 * v for v in values])
            for name in names
            if (values := curves["values"].get(f"routing/{name}")) and not (is_single and name == "reordered")
        }
        for title, names in _ROUTING_CHARTS.items()
    }
    return [{**_chart(title, series), "unit": " %"} for title, series in found.items() if series]


def _breakdown(part: Breakdown) -> dict[str, Any]:
    values = {name: (part.steps, [_number(float(value)) for value in each]) for name, each in part.values.items()}
    return _chart(part.name, values) | {"unit": part.unit, "xName": part.by, "labels": part.labels, "log": False}


def _by_region(error: ErrorMap, places: Places | None) -> Breakdown | None:
    """Errors in bands of latitude of a globe, and in the quarters of other maps."""
    if places is None or len(places.shape) != 2 or min(places.shape) < 4:
        return None
    weights = np.ones(places.shape) if places.areas is None else places.areas
    rows, columns = (np.arange(size) * 2 // size for size in places.shape)
    parts = 2 * (rows if not places.goes_up else 1 - rows)[:, None] + columns
    names = ["upper left", "upper right", "lower left", "lower right"]
    if places.is_geographic:
        names = ["north-west", "north-east", "south-west", "south-east"]
    if places.kind == "globe" and places.rows is not None:
        band = np.clip((places.rows.values + 90.0) // 30.0, 0, 5).astype(int)
        parts, names = (
            np.broadcast_to(band[:, None], places.shape),
            ["90-60°S", "60-30°S", "30°S-0", "0-30°N", "30-60°N", "60-90°N"],
        )
    values: dict[str, list[float]] = {}
    for name, found in {"this run": error.values, **error.others}.items():
        squares = np.square(found).ravel()
        weighted = np.where(np.isnan(squares), 0.0, weights.ravel())
        sums, areas = (np.bincount(parts.ravel(), w, len(names)) for w in (np.nan_to_num(squares) * weighted, weighted))
        values[name] = np.sqrt(sums / np.where(areas > 0, areas, np.nan)).tolist()
    return Breakdown(
        f"{error.name} by region", "region", tuple(range(len(names))), values, f" {error.units}".rstrip(), tuple(names)
    )


def _chart(name: str, series: Mapping[str, tuple[Sequence[float | None], Sequence[float | None]]]) -> dict[str, Any]:
    """Curves over epochs by their names; with a logarithmic axis if they span decades."""
    known = {label: [value for value in values if value is not None] for label, (_, values) in series.items()}
    every = [value for values in known.values() for value in values]
    # Shares are read on a scale from none to all.
    is_share = any(word in name for word in ("percent", "accuracy", "routing/"))
    is_log = bool(every) and not is_share and min(every) > 0 and max(every) > 300 * min(every)
    ends = [(label, show_number(values[0]), show_number(values[-1])) for label, values in known.items() if values]
    words = "; ".join(f"{label}: from {first} to {last}" for label, first, last in ends[:4]) + "."
    shown = [(label, list(steps), list(values)) for label, (steps, values) in series.items()]
    common = {"references": [], "unit": "", "xName": "epoch", "labels": []}
    return {"name": name, "series": shown, "log": is_log, "words": words, **common}


def _colours_of_regions(gate: GateMap, regions: np.ndarray) -> list[int]:
    """For each region the expert that found it, whose colour it has; a number of its own where there is none."""
    num_regions = int(regions.max()) + 1
    num_colours = max(gate.num_experts, num_regions)
    if num_colours > _MAX_MATCHED:
        return list(range(num_regions))
    return match_experts(regions.reshape(1, -1), gate.choices[:1], num_colours)[:num_regions].tolist()


def _quantiles(values: np.ndarray, *shares: float) -> list[float]:
    known = values[np.isfinite(values)]
    return np.quantile(known, shares).tolist() if known.size else [0.0] * len(shares)


def _number(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return value if is_number else None
