"""The sections of a page: tables as HTML, and places that the script fills with charts and pictures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from smoe.experiments.report_parts import Classes
from smoe.reports.markup import Markup, escape, facts_table, flatten, head_row, join, tag
from smoe.reports.run_report import RunReport, epochs_of, seconds_of
from smoe.reports.score_sheet import ScoreRow, ScoreSheet, show_number

_ROUTING_WORDS = (
    "Which experts serve which pixel. Point at a pixel, or move over the picture with the arrow keys, to read its "
    "place, its experts and their scores."
)


def run_sections(report: RunReport, number: int, level: int) -> list[tuple[str, str, Markup]]:
    """Returns the sections of a run.

    Args:
        report: Run to show.
        number: Its number on the page.
        level: Level of the headings.

    Returns:
        Identifier, heading and content of each section.
    """
    found: list[tuple[str, str, list[object]]] = [("scores", "Scores", _scores(report))]
    if report.epochs:
        found.append(("curves", "Curves", [_place("curves", number)]))
    if report.gates:
        words = [tag("p", _ROUTING_WORDS, class_="note"), *_worth(report)]
        found.append(("routing", "Routing", [*words, _place("routing", number)]))
        found.append(("use", "Expert use", [_place("use", number)]))
        found.append(("filters", "Filters of chosen experts", [_place("filters", number)]))
    else:
        words = "The network has no gate that chooses among experts" + (
            "." if report.is_plain else " without looking at its input, and no data were read."
        )
        found.append(("routing", "Routing", [tag("p", words)]))
    if any(key.startswith("routing/") for record in report.epochs for key in record):
        found.append(("routing-epochs", "Routing by epoch", [_place("routing-epochs", number)]))
    if report.error_maps:
        found.append(("errors", "Errors", [*_error_words(report), _place("errors", number)]))
    if report.classes is not None and report.classes.confusion is not None:
        found.append(("classes", "Classes", [confusion_table(report.classes, report.classes.confusion)]))
    found.append(("repeat", "How it was made", _origin(report)))
    sections: list[tuple[str, str, Markup]] = []
    for key, heading, content in found:
        identifier = f"run-{number}-{key}"
        head = tag(f"h{level}", heading, id=f"{identifier}-title")
        # Landmarks of several runs on one page need names of their own.
        name = heading if level == 2 else f"{heading} of {report.label}"
        body = tag("section", head, *content, id=identifier, aria_label=name)
        sections.append((identifier, heading, body))
    return sections


def figures_list(report: RunReport) -> Markup:
    """Returns the numbers that a reader asks for first."""
    figures: dict[str, str] = {}
    own = next((row for row in report.scores.rows if row.is_own), None)
    if own is not None:
        watched = report.monitor.key.removeprefix("validation/")
        metric = watched if watched in own.values else next(iter(own.values))
        figures[f"{metric}, {report.scores.split}"] = show_number(own.values[metric])
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
    """Returns a table of all runs that the script makes sortable.

    Args:
        reports: Runs, one for each row.
        shared: Share of the choices that each run has in common with the first one; None if it was not compared.
    """
    metrics = list(dict.fromkeys(metric for report in reports for metric in _own_values(report) if "/" not in metric))
    heads = ["run", *metrics]
    has_shared = any(share is not None for share in shared)
    heads += ["choices as in the first run, %"] if has_shared else []
    heads += ["epochs", "seconds", "parameters", "seed"]
    rows: list[Markup] = []
    for report, share in zip(reports, shared, strict=True):
        own = _own_values(report)
        numbers: list[float | None] = [own.get(metric) for metric in metrics]
        numbers += [None if share is None else 100 * share] if has_shared else []
        numbers += [len(report.epochs), report.seconds, report.num_parameters, report.seed]
        worth = report.routing_gains[-1].verdict if report.routing_gains else ""
        words = [worth, report.scores.split or "nothing", report.title]
        cells = [*map(_number_cell, numbers), *(tag("td", word, class_="text") for word in words)]
        rows.append(tag("tr", tag("th", report.label, scope="row"), *cells))
    caption = tag("caption", "All runs. Click a column heading to sort.")
    head = head_row(heads, ["beside single convolutions", "scored on", "recipe"])
    table = tag("table", caption, head, tag("tbody", *rows), class_="sortable")
    return _scrolling(table, "All runs")


def score_table(sheet: ScoreSheet, rows: Sequence[ScoreRow], caption: str) -> Markup:
    """Returns scores of predictions as a table that the script makes sortable.

    Args:
        sheet: All scores of the run.
        rows: Rows to show.
        caption: Caption of the table.
    """
    metrics = [metric for metric in sheet.metrics if any(metric in row.values for row in rows)]
    heads = [f"{name}{f' ({unit})' if (unit := sheet.units.get(name)) else ''}" for name in metrics]
    body = tag("tbody", *(_score_row(row, metrics) for row in rows))
    head = head_row(["prediction", *heads], ["source"])
    table = tag("table", tag("caption", caption), head, body, class_="sortable")
    return _scrolling(table, caption)


def confusion_table(classes: Classes, confusion: np.ndarray) -> Markup:
    """Returns how many images of each class were taken for each class."""
    totals = np.maximum(confusion.sum(axis=1), 1)
    rows = (
        tag(
            "tr",
            tag("th", name, scope="row"),
            *(
                tag("td", int(count), style=f"--share:{count / total:.3f}")
                for count in confusion[number]
            ),
            tag("td", f"{100 * (1 - confusion[number, number] / total):.2f}"),
        )
        for number, (name, total) in enumerate(zip(classes.names, totals, strict=True))
    )  # fmt: skip
    wrong = int(confusion.sum() - np.trace(confusion))
    caption = (
        f"{wrong:,} of {int(confusion.sum()):,} images are mistaken. Rows are true classes, columns what was found."
    )
    table = tag(
        "table",
        tag("caption", caption),
        head_row(["true class", *classes.names, "errors, %"]),
        tag("tbody", *rows),
        class_="confusion",
    )
    return _scrolling(table, "Classes and what they were taken for")


def _scores(report: RunReport) -> list[object]:
    content: list[object] = [figures_list(report)]
    sheet = report.scores
    others = [row for row in sheet.rows if row.is_published and not row.is_same_recipe]
    first = [row for row in sheet.rows if row not in others]
    if first:
        content.append(score_table(sheet, first, _scores_caption(sheet.split)))
    else:
        content.append(tag("p", "The record of the run holds no scores."))
    content += [tag("p", remark, class_="note") for remark in report.remarks]
    if others:
        own = [row for row in sheet.rows if row.is_own]
        table = score_table(sheet, [*own, *others], "Published results of other models.")
        content.append(tag("details", tag("summary", "Published results of other models"), table))
    if sheet.parts:
        values = {name: show_number(value) for name, value in sheet.parts.items()}
        facts = facts_table(f"Parts of the data, {sheet.split}.", values)
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
        content.append(facts_table("Versions, machine and data.", report.facts))
    recipe = facts_table("Every field of the recipe.", flatten(report.recipe))
    content.append(tag("details", tag("summary", "Recipe"), recipe))
    return content


def _score_row(row: ScoreRow, metrics: Sequence[str]) -> Markup:
    cells = []
    for metric in metrics:
        value, spread = row.values.get(metric), row.spreads.get(metric)
        text = escape(show_number(value))
        if value is not None and spread:
            text = join([text, tag("small", f"± {show_number(spread)}")])
        cells.append(tag("td", text, data_value="" if value is None else repr(float(value))))
    source = tag("td", row.source, class_="text")
    return tag("tr", tag("th", row.name, scope="row"), *cells, source, class_="own" if row.is_own else None)


def _scores_caption(split: str) -> str:
    name, _, detail = split.partition(", ")
    return f"Scores on the {name} split{f', {detail}' if detail else ''}."


def _own_values(report: RunReport) -> dict[str, float]:
    return next((dict(row.values) for row in report.scores.rows if row.is_own), {})


def _number_cell(value: float | None) -> Markup:
    known = None if value is None or not np.isfinite(value) else value
    shown = f"{value:,}" if isinstance(value, int) else show_number(value)
    return tag("td", shown, data_value="" if known is None else repr(float(known)))


def _place(part: str, number: int) -> Markup:
    return tag("div", data_part=part, data_run=number)


def _scrolling(table: Markup, label: str) -> Markup:
    return tag("div", table, class_="scroll", tabindex=0, role="group", aria_label=label)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
