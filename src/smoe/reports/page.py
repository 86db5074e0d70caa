"""Puts a page together and writes it."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

from smoe._files import write_atomically
from smoe.errors import DataError
from smoe.reports.page_data import DETAILS, page_data
from smoe.reports.run_report import RunReport
from smoe.reports.sections import Markup, comparison_table, run_sections, script_json, tag
from smoe.version import __version__

MAX_BYTES = 5_000_000
"""A page is smaller than this."""


def write_page(reports: Sequence[RunReport], output: Path, written: datetime | None = None) -> int:
    """Write the report of one run or of several, whole or not at all.

    Raises:
        DataError: If the page would be too large, or the file cannot be written.
    """
    content = make_page(reports, written or datetime.now(UTC)).encode()
    if output.is_dir():
        raise DataError(f"{output} is a directory: name a file, such as {output / 'report.html'}")
    try:
        write_atomically(output, lambda file: file.write(content))
    except OSError as error:
        raise DataError(f"{output} cannot be written: {error.strerror or error}") from error
    return len(content)


def make_page(reports: Sequence[RunReport], written: datetime) -> str:
    """Return the HTML of a page with as much detail as fits.

    Raises:
        DataError: If the page is too large with the least detail.
    """
    if not reports:
        raise ValueError("a report needs at least one run")
    size = 0
    for detail in DETAILS:
        data, arrays = page_data(reports, detail)
        page = _assemble(reports, data, arrays, written)
        size = len(page.encode())
        if size < MAX_BYTES:
            return page
    raise DataError(
        f"the report of {len(reports)} runs would have {size / 1e6:.1f} MB with the least detail, more than "
        f"{MAX_BYTES / 1e6:g} MB: give fewer runs"
    )


def _assemble(reports: Sequence[RunReport], data: dict[str, Any], arrays: str, written: datetime) -> str:
    is_single = len(reports) == 1
    first = reports[0]
    title = first.title if is_single else f"{len(reports)} runs"
    subtitle = first.label if is_single else ", ".join(report.label for report in reports)
    links, content = _single(first) if is_single else _several(reports, data)
    script, style = (
        resources.files("smoe.reports").joinpath("assets", name).read_text(encoding="utf-8")
        for name in ("report.js", "report.css")
    )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # Nothing is loaded, and no script runs but the one below: a name that looked like one would do nothing.
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    noscript = tag("noscript", tag("p", "Charts and pictures need JavaScript; the tables do not.", class_="note"))
    items = (tag("li", tag("a", text, href=f"#{key}")) for key, text in links)
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">',
        tag("title", f"{title}: report of {subtitle}" if is_single else f"Report of {title}"),
        f"{tag('style', Markup(style))}\n</head>\n<body>",
        tag("a", "Skip to the content", href="#content", class_="skip"),
        tag("header", tag("h1", title), tag("p", subtitle, class_="subtitle")),
        tag("nav", tag("ul", *items), aria_label="Parts"),
        tag("main", noscript, *content, id="content", tabindex=-1),
        tag("footer", f"Written by smoe {__version__}, {written:%Y-%m-%d %H:%M} UTC. The file needs no network."),
        tag("div", id="tip", role="tooltip", hidden=True),
        tag("div", id="live", class_="unseen", aria_live="polite"),
        tag("script", script_json(data), type="application/json", id="data"),
        tag("script", Markup(arrays), type="text/plain", id="arrays"),
        f"{tag('script', Markup(script))}\n</body>\n</html>\n",
    ]
    return "\n".join(parts)


def _single(report: RunReport) -> tuple[list[tuple[str, str]], list[Markup]]:
    sections = run_sections(report, 0, 2)
    return [(key, heading) for key, heading, _ in sections], [
        tag("div", *(section for _, _, section in sections), data_scope=0)
    ]


def _several(reports: Sequence[RunReport], data: dict[str, Any]) -> tuple[list[tuple[str, str]], list[Markup]]:
    shared = [next((gate["shared"] for gate in run["gates"]), None) for run in data["runs"]]
    parts = [("table", "All runs", comparison_table(reports, shared))]
    if any(report.epochs for report in reports):
        parts.append(("together", "Curves together", tag("div", data_part="compare-curves")))
    if any(report.gates for report in reports):
        words = "The layers and experts of the first run with experts are chosen; experts of other runs that serve the "
        words += "same pixels have its colours."
        place = tag("div", tag("p", words, class_="note"), tag("div", data_part="compare-routing"))
        parts.append(("beside", "Routing side by side", place))
    links = [(key, heading) for key, heading, _ in parts]
    sections = [
        tag("section", tag("h2", heading), content, id=key, aria_label=heading) for key, heading, content in parts
    ]
    for number, report in enumerate(reports):
        inner = tag("div", *(section for _, _, section in run_sections(report, number, 3)), data_scope=number)
        summary = tag("summary", f"{report.label}: {report.title}")
        sections.append(tag("section", tag("details", summary, inner, class_="run"), id=f"run-{number}"))
        links.append((f"run-{number}", report.label))
    return links, sections
