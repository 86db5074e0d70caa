"""The sections of a page as HTML: tables, and places that the script fills with charts and pictures."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from smoe.reports.parts import Classes
from smoe.reports.run_report import RunReport, ScoreRow, ScoreSheet, epochs_of, headline, seconds_of, show_number

_ROUTING_WORDS = (
    "Which experts serve which pixel. Point at a pixel, or move over the picture with the arrow keys, to read its "
    "place, its experts and their scores."
)


class Markup(str):
    """HTML that is already escaped."""

    __slots__ = ()


def tag(name: str, *children: object, **attributes: object) -> Markup:
    """Return an element."""
    words = [name]
    for key, value in attributes.items():
        if value is not None and value is not False:
            known = key.removesuffix("_").replace("_", "-")
            words.append(known if value is True else f'{known}="{_escape(value)}"')
    return Markup(f"<{' '.join(words)}>{''.join(map(_escape, children))}</{name}>")


def _escape(text: object) -> str:
    return text if isinstance(text, Markup) else html.escape(str(text), quote=True)


def script_json(content: Mapping[str, Any]) -> Markup:
    """Return plain values as JSON that cannot end the element that it stands in.

    Raises:
        ValueError: If a number is not finite.
    """
    text = json.dumps(content, allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def run_sections(report: RunReport, number: int, level: int) -> list[tuple[str, str, Markup]]:
    """Return the sections of a run."""

    def place(part: str) -> Markup:
        return tag("div", data_part=part, data_run=number)

    found: list[tuple[str, str, list[object]]] = [("scores", "Scores", _scores(report))]
    if report.examples:
        found.append(("examples", "Examples", [place("examples")]))
    if report.epochs:
        found.append(("curves", "Curves", [place("curves")]))
    if report.gates:
        words = [tag("p", _ROUTING_WORDS, class_="note"), *_worth(report)]
        found.append(("routing", "Routing", [*words, place("routing")]))
        found.append(("use", "Expert use", [place("use")]))
        found.append(("filters", "Filters of chosen experts", [place("filters")]))
    else:
        words = "The network has no gate that chooses among experts" + (
            "." if report.is_plain else " without looking at its input, and no data were read."
        )
        found.append(("routing", "Routing", [tag("p", words)]))
    if any(key.startswith("routing/") for record in report.epochs for key in record):
        found.append(("routing-epochs", "Routing by epoch", [place("routing-epochs")]))
    if report.error_maps:
        found.append(("errors", "Errors", [*_error_words(report), place("errors")]))
    if report.classes is not None and report.classes.confusion is not None:
        found.append(("classes", "Classes", [_confusion_table(report.classes, report.classes.confusion)]))
    found.append(("repeat", "How it was made", _origin(report)))
    sections: list[tuple[str, str, Markup]] = []
    for key, heading, content in found:
        identifier = f"run-{number}-{key}"
        # Landmarks of several runs on one page need names of their own.
        name = heading if level == 2 else f"{heading} of {report.label}"
        body = tag("section", tag(f"h{level}", heading), *content, id=identifier, aria_label=name)
        sections.append((identifier, heading, body))
    return sections


def figures_list(report: RunReport) -> Markup:
    """Return the numbers that a reader asks for first."""
    figures: dict[str, str] = {}
    own = _own_values(report)
    if own:
        watched = report.monitor.key.removeprefix("validation/")
        metric = watched if watched in own else next(iter(own))
        figures[f"{metric}, {report.scores.split}"] = show_number(own[metric])
    plain = epochs_of(report.plain_history)
    figures["epochs"] = f"{len(report.epochs)}{f'; plain net {len(plain)}' if plain else ''}"
    if report.seconds is not None:
        beside = seconds_of(report.plain_history)
        figures["training"] = _duration(report.seconds) + (f"; plain net {_duration(beside)}" if beside else "")
    figures["parameters"] = f"{report.num_parameters:,}"
    if report.gates:
        figures["gates"] = str(len(report.gates))
    if report.routing_gains:
        figures["beside single convolutions"] = report.routing_gains[-1].verdict
    pairs = (tag("div", tag("dt", name), tag("dd", value)) for name, value in figures.items())
    return tag("dl", *pairs, class_="figures")


def comparison_table(reports: Sequence[RunReport], shared: Sequence[float | None]) -> Markup:
    """Return a table of all runs that the script makes sortable."""
    metrics = list(dict.fromkeys(metric for report in reports for metric in _own_values(report) if "/" not in metric))
    has_shared = any(share is not None for share in shared)
    heads = ["run", *metrics, *(["choices as in the first run, %"] if has_shared else [])]
    heads += ["epochs", "seconds", "parameters", "seed"]
    rows: list[Markup] = []
    for report, share in zip(reports, shared, strict=True):
        own = _own_values(report)
        numbers: list[float | None] = [own.get(metric) for metric in metrics]
        numbers += [None if share is None else 100 * share] if has_shared else []
        numbers += [len(report.epochs), report.seconds, report.num_parameters, report.seed]
        worth = report.routing_gains[-1].verdict if report.routing_gains else ""
        texts = [worth, report.scores.split or "nothing", report.title]
        cells = [*map(_number_cell, numbers), *(tag("td", text, class_="text") for text in texts)]
        rows.append(tag("tr", tag("th", report.label, scope="row"), *cells))
    texts = ["beside single convolutions", "scored on", "recipe"]
    return _table("All runs. Click a column heading to sort.", heads, rows, "sortable", texts)


def _table(
    caption: str, heads: Sequence[str], rows: Iterable[Markup], kind: str, text_heads: Sequence[str] = ()
) -> Markup:
    """A table that scrolls: a column of row heads, columns of numbers, and some of text behind them."""
    cells = [tag("th", head, scope="col", class_=None if index else "text") for index, head in enumerate(heads)]
    cells += [tag("th", head, scope="col", class_="text") for head in text_heads]
    head = [tag("thead", tag("tr", *cells))] if cells else []
    table = tag("table", tag("caption", caption), *head, tag("tbody", *rows), class_=kind)
    return tag("div", table, class_="scroll", tabindex=0, role="group", aria_label=caption)


def _score_table(sheet: ScoreSheet, rows: Sequence[ScoreRow], caption: str) -> Markup:
    metrics = [metric for metric in sheet.metrics if any(metric in row.values for row in rows)]
    heads = [f"{name}{f' ({unit})' if (unit := sheet.units.get(name)) else ''}" for name in metrics]
    body = [
        tag(
            "tr",
            tag("th", row.name, scope="row"),
            *(_number_cell(row.values.get(metric), row.spreads.get(metric)) for metric in metrics),
            tag("td", row.source, class_="text"),
            class_="own" if row.is_own else None,
        )
        for row in rows
    ]
    return _table(caption, ["prediction", *heads], body, "sortable", ["source"])


def _facts_table(caption: str, facts: Mapping[str, object]) -> Markup:
    rows = (tag("tr", tag("th", name, scope="row"), tag("td", value)) for name, value in facts.items())
    return _table(caption, (), rows, "facts")


def _confusion_table(classes: Classes, confusion: np.ndarray) -> Markup:
    """How many images of each class were taken for each class."""
    rows = []
    for number, (name, counts) in enumerate(zip(classes.names, confusion, strict=True)):
        shares = counts / max(1, counts.sum())
        cells = [
            tag("td", int(count), style=f"--share:{share:.3f}") for count, share in zip(counts, shares, strict=True)
        ]
        rows.append(tag("tr", tag("th", name, scope="row"), *cells, tag("td", f"{100 * (1 - shares[number]):.2f}")))
    wrong, total = int(confusion.sum() - np.trace(confusion)), int(confusion.sum())
    caption = f"{wrong:,} of {total:,} images are mistaken. Rows are true classes, columns what was found."
    return _table(caption, ["true class", *classes.names, "errors, %"], rows, "confusion")


def _scores(report: RunReport) -> list[object]:
    words = headline(report)
    content: list[object] = [*([tag("p", words, class_="headline")] if words else []), figures_list(report)]
    sheet = report.scores
    others = [row for row in sheet.rows if row.is_published and not row.is_same_recipe]
    first = [row for row in sheet.rows if row not in others]
    if first:
        name, _, detail = sheet.split.partition(", ")
        content.append(_score_table(sheet, first, f"Scores on the {name} split{f', {detail}' if detail else ''}."))
    else:
        content.append(tag("p", "The record of the run holds no scores."))
    content += [tag("p", remark, class_="note") for remark in report.remarks]
    if others:
        own = [row for row in sheet.rows if row.is_own]
        table = _score_table(sheet, [*own, *others], "Published results of other models.")
        content.append(tag("details", tag("summary", "Published results of other models"), table))
    if sheet.parts:
        values = {name: show_number(value) for name, value in sheet.parts.items()}
        facts = _facts_table(f"Parts of the data, {sheet.split}.", values)
        content.append(tag("details", tag("summary", "Scores of parts of the data"), facts))
    return content


def _worth(report: RunReport) -> list[Markup]:
    """What the routing was worth at the end, in a sentence for each layer and one for all."""
    sentences = [f"{text[:1].upper()}{text[1:]}." for text in map(str, report.routing_gains)]
    if not sentences:
        return []
    whole = tag("p", sentences[-1])
    parts = tag("ul", *(tag("li", sentence) for sentence in sentences[:-1]))
    return [whole, tag("details", tag("summary", "One layer at a time"), parts)] if len(sentences) > 1 else [whole]


def _error_words(report: RunReport) -> list[Markup]:
    if report.is_plain or any(error.plain is not None for error in report.error_maps):
        return []
    words = "The gain over a plain net is shown if the report is given its run: "
    return [tag("p", words, tag("code", "smoe report RUN --plain PLAIN_RUN"), ".", class_="note")]


def _origin(report: RunReport) -> list[object]:
    content: list[object] = [tag("p", f"End of the training: {report.ending}. Shown: {report.checkpoint}.")]
    if report.command:
        content += [tag("p", "The command that makes it again:"), tag("pre", tag("code", report.command))]
    else:
        content.append(tag("p", "The command is not known: the run was made from Python."))
    if report.facts:
        content.append(_facts_table("Versions, machine and data.", report.facts))
    recipe = _facts_table("Every field of the recipe.", _flatten(report.recipe))
    content.append(tag("details", tag("summary", "Recipe"), recipe))
    return content


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested values by their names with dots, as JSON has them."""
    flat: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value if isinstance(value, str) else json.dumps(value, default=str)
    return flat


def _own_values(report: RunReport) -> Mapping[str, float]:
    return next((row.values for row in report.scores.rows if row.is_own), {})


def _number_cell(value: float | None, spread: float | None = None) -> Markup:
    """A number that a table is sorted by, with its spread if it has one."""
    shown = f"{value:,}" if isinstance(value, int) else show_number(value)
    small = [tag("small", f" ± {show_number(spread)}")] if value is not None and spread else []
    return tag("td", shown, *small, data_value="" if value is None or not math.isfinite(value) else repr(float(value)))


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
