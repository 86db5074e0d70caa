"""Puts a page together and writes it: tables, and places that the script fills with charts and pictures."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from smoe._files import write_atomically
from smoe._json import flatten
from smoe._notebook import expert_colours, html_image
from smoe.errors import DataError
from smoe.reports._page_data import DETAILS, DIVERGING, page_data
from smoe.reports.gate_maps import GateMap, as_picture
from smoe.reports.run_report import RunReport, epochs_of, headline, plain_name, seconds_of, show_number
from smoe.version import __version__

MAX_BYTES = 5_000_000
"""A page is smaller than this."""


def write_page(reports: Sequence[RunReport], output: Path) -> int:
    """Writes the report of one run or of several, whole or not at all; returns its size in bytes.

    Raises:
        DataError: If the page would be too large, or the file cannot be written.
    """
    content = make_page(reports, datetime.now(UTC)).encode()
    if output.is_dir():
        raise DataError(f"{output} is a directory: name a file, such as {output / 'report.html'}")
    try:
        write_atomically(output, lambda file: file.write(content))
    except OSError as error:
        raise DataError(f"{output} cannot be written: {error.strerror or error}") from error
    return len(content)


def make_page(reports: Sequence[RunReport], written: datetime) -> str:
    """Returns the HTML of a page with as much detail as fits.

    Raises:
        DataError: If the page is too large with the least detail.
    """
    if not reports:
        raise ValueError("a report needs at least one run")
    size = 0
    for detail in DETAILS:
        data, arrays = page_data(reports, detail)
        page = _render(reports, data, arrays, written)
        size = len(page.encode())
        if size < MAX_BYTES:
            return page
    raise DataError(
        f"the report of {len(reports)} runs would have {size / 1e6:.1f} MB with the least detail, more than "
        f"{MAX_BYTES / 1e6:g} MB: give fewer runs"
    )


def _asset(name: str) -> str:
    return resources.files("smoe.reports").joinpath("assets", name).read_text(encoding="utf-8")


def _render(reports: Sequence[RunReport], data: dict[str, Any], arrays: str, written: datetime) -> str:
    # Text from outside is escaped by the template.
    templates = Environment(loader=FunctionLoader(_asset), autoescape=True, trim_blocks=True, undefined=StrictUndefined)
    templates.filters["shown"] = lambda value: f"{value:,}" if isinstance(value, int) else show_number(value)
    templates.filters["sort_key"] = lambda value: "" if value is None or not math.isfinite(value) else float(value)
    templates.filters["with_unit"] = lambda name, sheet: (
        plain_name(name) + (f" ({u})" if (u := sheet.units.get(name)) else "")
    )
    runs = [_run_parts(report, number, data["runs"][number]) for number, report in enumerate(reports)]
    is_single, script = len(reports) == 1, _asset("report.js")
    # Runs that have no score in common are shown one after the other.
    scored = Counter(metric for report in reports for metric in _own_values(report))
    is_compared = is_single or max(scored.values(), default=2) > 1
    has_curves = is_compared and any(report.epochs for report in reports)
    has_gates = is_compared and any(report.gates for report in reports)
    links = [(f"run-0-{key}", heading) for key, heading in runs[0]["parts"]]
    if not is_single:
        parts = {"table": "All runs", "together": "Curves together", "beside": "Routing side by side"}
        shown = {"table": is_compared, "together": has_curves, "beside": has_gates}
        links = [(key, heading) for key, heading in parts.items() if shown[key]]
        links += [(f"run-{number}", report.label) for number, report in enumerate(reports)]
    return templates.get_template("report.html").render(
        runs=runs,
        is_single=is_single,
        is_compared=is_compared,
        title=reports[0].title if is_single else f"{len(reports)} runs",
        subtitle=", ".join(report.label for report in reports),
        links=links,
        has_curves=has_curves,
        has_gates=has_gates,
        comparison=_comparison(reports, data),
        differences=_differences(reports) if is_compared else [],
        style=_asset("report.css"),
        script=script,
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        data=script_json(data),
        arrays=arrays,
        version=__version__,
        written=f"{written:%Y-%m-%d %H:%M}",
    )


def script_json(content: Mapping[str, Any]) -> str:
    """Returns plain values, all of them finite, as JSON that cannot end the element that it stands in."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _run_parts(report: RunReport, number: int, data: dict[str, Any]) -> dict[str, Any]:
    has_routing_records = any(key.startswith("routing/") for record in report.epochs for key in record)
    shown = {
        "scores": ("Scores", True),
        "examples": ("Examples", bool(report.examples)),
        "curves": ("Curves", bool(report.epochs)),
        "routing": ("Routing", True),
        "use": ("Expert use", bool(report.gates)),
        "filters": ("Filters of chosen experts", bool(report.gates)),
        "routing-epochs": ("Routing by epoch", has_routing_records),
        "errors": ("Errors", bool(report.error_maps)),
        "parts": ("Errors by time and region", bool(data["charts"]["parts"])),
        "reliability": ("Reliability", bool(report.reliability)),
        "repeat": ("How it was made", True),
    }
    sheet = report.scores
    others = [row for row in sheet.rows if row.is_published and not row.is_same_recipe]
    name, _, detail = sheet.split.partition(", ")
    return {
        "report": report,
        "number": number,
        "parts": [(key, heading) for key, (heading, is_shown) in shown.items() if is_shown],
        "headline": headline(report),
        "gates": [_gate_parts(report, *both) for both in zip(report.gates, data["gates"], strict=False)],
        "figures": figures(report),
        "first": [row for row in sheet.rows if row not in others],
        "caption": f"Scores on the {name} split{f', {detail}' if detail else ''}.",
        "published": [*(row for row in sheet.rows if row.is_own), *others] if others else [],
        "parts_of_data": {name: show_number(value) for name, value in sheet.parts.items()},
        "sentences": [f"{text[:1].upper()}{text[1:]}." for text in map(str, report.routing_gains)],
        "names_plain": not report.is_plain and not any(error.others for error in report.error_maps),
        "recipe": {name: _plain_text(value) for name, value in flatten(report.recipe).items()},
    }


# So many experts are shown with their use.
_NUM_USED = 32


def _gate_parts(report: RunReport, gate: GateMap, data: dict[str, Any]) -> dict[str, Any]:
    """Use and filters of the most used experts of a gate."""
    colours, partners = expert_colours(gate.num_experts), data["partners"] or range(gate.num_experts)
    order = [int(expert) for expert in np.argsort(-gate.use, kind="stable") if gate.use[expert] > 0]
    used = [(each, 100 * float(gate.use[each]), colours[partners[each]].tolist()) for each in order[:_NUM_USED]]
    words = f"{len(order)} of {gate.num_experts} experts are in use"
    words += f", of which the {len(used)} most used are shown" if len(used) < len(order) else ""
    words += f". Each would serve {100 * gate.num_selected / gate.num_experts:.3g} % if all were used alike."
    found = gate.filters
    if found is None:
        return {"used": used, "words": words, "cards": [], "note": "The experts of this layer have no filters to draw."}
    known = [(f"{name} (true)", None, (as_picture(each),), ("",)) for name, each in report.filters.items()]
    own = [
        (f"expert {expert}: {show_number(round(100 * float(gate.use[expert]), 1))} %", expert, pictures, labels)
        for expert, labels, pictures in zip(found.experts, found.labels, found.pictures, strict=True)
    ]
    largest = max((float(np.abs(one).max()) for _, _, each, _ in (*known, *own) for one in each), default=0.0) or 1.0

    def image(values: np.ndarray, title: str) -> Markup:
        numbers = "; ".join(" ".join(f"{value:.3g}" for value in row) for row in values)
        levels = np.rint(127.5 + 127.5 * np.nan_to_num(values) / largest).astype(int)
        wide = values.shape[1] * max(6, min(22, 132 // values.shape[1]))
        return Markup(html_image(DIVERGING[levels], wide, f"{title}: {numbers}"))

    note = (
        f"The most used experts of {gate.layers[0]}, with the share of the pixels that each serves. Blue is positive, "
    )
    note += f"orange negative, white zero; all have one scale, up to {show_number(largest)}."
    num_shown = max(map(len, found.labels), default=0)
    if num_shown < found.num_filters:
        note += f" Each expert has {found.num_filters} filters: the {num_shown} with the largest weights are shown."
    cards = [
        (title, expert, [(image(one, f"{title} {label}"), label) for one, label in zip(pictures, labels, strict=True)])
        for title, expert, pictures, labels in (*known, *own)
    ]
    return {"used": used, "words": words, "cards": cards, "note": note}


def figures(report: RunReport) -> dict[str, str]:
    """Returns the numbers that a reader asks for first."""
    found: dict[str, str] = {}
    own = _own_values(report)
    if own:
        watched = report.monitor.key.removeprefix("validation/")
        metric = watched if watched in own else next(iter(own))
        found[f"{plain_name(metric)}, {report.scores.split}"] = show_number(own[metric])
    plain = epochs_of(report.plain_history)
    found["epochs"] = f"{len(report.epochs)}{f'; plain net {len(plain)}' if plain else ''}"
    if report.seconds is not None:
        beside = seconds_of(report.plain_history)
        found["training"] = _duration(report.seconds) + (f"; plain net {_duration(beside)}" if beside else "")
    found["parameters"] = f"{report.num_parameters:,}"
    return found | ({"gates": str(len(report.gates))} if report.gates else {})


def _comparison(reports: Sequence[RunReport], data: dict[str, Any]) -> dict[str, Any]:
    """The table of all runs, with the share of the choices that each has in common with the first one."""
    shared = [next((gate["shared"] for gate in run["gates"]), None) for run in data["runs"]]
    metrics = list(dict.fromkeys(metric for report in reports for metric in _own_values(report) if "/" not in metric))
    has_shared = any(share is not None for share in shared)
    rows = []
    for report, share in zip(reports, shared, strict=True):
        own = _own_values(report)
        numbers: list[float | None] = [own.get(metric) for metric in metrics]
        numbers += [None if share is None else 100 * share] if has_shared else []
        numbers += [len(report.epochs), report.seconds, report.num_parameters, report.seed]
        rows.append((report.label, numbers, [report.scores.split or "nothing", report.title]))
    heads = ["run", *map(plain_name, metrics), *(["choices as in the first run, %"] if has_shared else [])]
    return {"heads": [*heads, "epochs", "seconds", "parameters", "seed"], "rows": rows}


def _differences(reports: Sequence[RunReport]) -> list[tuple[str, list[str]]]:
    """Fields of the recipes that are not the same in all runs, of those that several have."""
    recipes = [flatten(report.recipe) for report in reports]
    counts = Counter(name for recipe in recipes for name in recipe)
    names = [name for name, count in counts.items() if count > 1]
    rows = [(name, [_plain_text(recipe[name]) if name in recipe else "" for recipe in recipes]) for name in names]
    return [(name, values) for name, values in rows if len(set(values)) > 1]


def _plain_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _own_values(report: RunReport) -> Mapping[str, float]:
    return next((row.values for row in report.scores.rows if row.is_own), {})


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
