"""Tables of results: rows are recipes with what the paper prints for them, beside stored runs. Imports no torch."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from smoe.training import write_atomically
from smoe_paper.experiments.recipe import Recipe
from smoe_paper.experiments.stored_runs import RunStore


@dataclass(frozen=True)
class PublishedResult:
    """Mean and standard deviation over a publication's runs, epochs if they are printed, and the place in it."""

    metric: str
    mean: float
    spread: float = 0.0
    epochs: int | None = None
    source: str = ""
    parameters: str = ""


@dataclass(frozen=True)
class ShownMetric:
    """A metric of the test split that tables show."""

    name: str
    heading: str = ""  # before `paper` and `here`; empty if it is the only metric
    decimals: int = 1
    is_percentage: bool = False

    def column(self, kind: str) -> str:
        """The heading of a column of the paper's or of our numbers."""
        return f"{self.heading}: {kind}" if self.heading else kind

    def number(self, mean: float, spread: float | None = None) -> str:
        """A number as it is printed, with its standard deviation over the seeds."""
        if self.is_percentage:
            return percent(mean, spread, self.decimals)
        text = f"{mean:.{self.decimals}f}"
        return text if spread is None else f"{text} ± {spread:.{self.decimals}f}"


@dataclass(frozen=True)
class Row:
    labels: tuple[str, ...]
    recipe: Recipe
    paper: tuple[PublishedResult, ...] = ()
    can_run: bool = True  # False if it needs data that nothing here stands for: the row is shown, and not trained.

    @property
    def label(self) -> str:
        return ", ".join(self.labels)


@dataclass(frozen=True)
class ResultTable:
    name: str  # on the command line, such as `heat/gates`
    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    source: str = ""
    text: str = ""  # about the set-up; statements about results belong into `notes.md` beside the results
    references: tuple[str, ...] = ()
    metrics: tuple[ShownMetric, ...] = ()
    picture: tuple[str, str] = ("", "")  # a file beside the stored runs that stands below the table, and its caption

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row.labels) != len(self.columns):
                raise ValueError(f"{self.name}: {row.labels} does not fit the columns {self.columns}")

    @property
    def short_name(self) -> str:
        return self.name.partition("/")[2]


def make_table(
    name: str, title: str, columns: str, rows: Iterable[tuple[Any, ...]], source: str = "", **options: Any
) -> ResultTable:
    """A table of rows `(labels, recipe, *published results)`, with labels and columns divided by `; `."""
    made = tuple(Row(tuple(labels.split("; ")), recipe, tuple(paper)) for labels, recipe, *paper in rows)
    return ResultTable(name, title, tuple(columns.split("; ")), made, source, **options)


@dataclass(frozen=True)
class Scale:
    """A size of the experiment: that of the paper, a smaller one, or one with simulated data."""

    name: str
    text: str
    # Takes recipes of its own experiment.
    apply: Callable[[Any], Recipe] = lambda recipe: recipe
    kind: Literal["paper", "smaller", "simulated"] = "paper"

    def recipe(self, row: Row, seed: int) -> Recipe:
        return replace(self.apply(row.recipe), seed=seed)


@dataclass(frozen=True)
class TableSet:
    name: str
    metrics: tuple[ShownMetric, ...]
    metric_text: str
    tables: tuple[ResultTable, ...]
    scales: tuple[Scale, ...]
    num_seeds: int = 10  # of a row in the paper
    data_field: str = ""  # of a recipe's data that names their place; empty if they are simulated
    # Place of a recipe's data in the folder that a user names; that folder itself if not given.
    data_folder: Callable[[Any, Path], Path] | None = None

    def with_data(self, recipe: Recipe, path: Path) -> Recipe:
        if not self.data_field:
            return recipe
        path = path if self.data_folder is None else self.data_folder(recipe.data, path)
        return replace(recipe, data=replace(recipe.data, **{self.data_field: path}))

    def select(self, name: str) -> list[ResultTable]:
        """All tables for the experiment's name, one table for its own."""
        chosen = [table for table in self.tables if name in (self.name, table.name)]
        if not chosen:
            known = ", ".join(table.name for table in self.tables)
            raise ValueError(f"no table named {name!r}; there are {self.name} (all of them), {known}")
        return chosen

    def scale(self, name: str) -> Scale:
        for scale in self.scales:
            if scale.name == name:
                return scale
        raise ValueError(f"no scale named {name!r}; there are {', '.join(scale.name for scale in self.scales)}")


@dataclass(frozen=True)
class Outcome:
    """The stored runs of a row at a scale, by seed."""

    scale: Scale
    results: list[dict[str, Any]]

    def values(self, metric: str) -> list[float]:
        """Values of the runs that did not diverge."""
        return [run["test"][metric] for run in self.results if metric in run["test"]]

    def mean(self, metric: str) -> float | None:
        values = self.values(metric)
        return statistics.fmean(values) if values else None

    def spread(self, metric: str) -> float:
        """Standard deviation over the seeds; 0 for one."""
        values = self.values(metric)
        return statistics.stdev(values) if len(values) > 1 else 0.0

    @property
    def shown_epoch(self) -> str:
        """Mean of the epochs of the best weights."""
        epochs = [result["best_epoch"] for result in self.results if result["best_epoch"] is not None]
        return f"{statistics.fmean(epochs):.0f}" if epochs else ""

    @property
    def shown_parameters(self) -> str:
        first = self.results[0]
        return f"{first['parameters']}{f'+{gate}' if (gate := first['gate_parameters']) else ''}"

    def differs_from(self, paper: PublishedResult) -> bool:
        """Whether the means are further apart than both spreads and rounding, or our seeds disagree among themselves.

        These disagree if their spread exceeds the paper's by more than a hundredth of the mean.
        """
        mean, spread = self.mean(paper.metric), self.spread(paper.metric)
        if mean is None or spread - paper.spread > 0.01 * abs(mean):
            return True
        return abs(mean - paper.mean) > spread + paper.spread + 0.05

    def cell(self, metric: ShownMetric) -> str:
        mean, values = self.mean(metric.name), self.values(metric.name)
        if mean is None:
            return "not scored" if any(run["test"] for run in self.results) else "diverged"
        num_diverged = len(self.results) - len(values)
        text = metric.number(mean, self.spread(metric.name) if len(values) > 1 else None)
        return text + (f" ({num_diverged} diverged)" if num_diverged else "")


def verdict(row: Row, outcome: Outcome | None) -> str:
    """What a row is beside the paper's, which `PAGE_TEXT` explains."""
    if not row.paper:
        return "ours"
    if outcome is None:
        return "not run"
    if outcome.scale.kind != "paper":
        return outcome.scale.kind
    return "differs" if any(outcome.differs_from(result) for result in row.paper) else "reproduced"


def outcomes(tables: TableSet, row: Row, store: RunStore) -> list[Outcome]:
    """What is stored of a row, the largest scale first."""
    scales = tables.scales if row.can_run else ()
    found = ((scale, store.read_all_seeds(scale.recipe(row, seed=0))) for scale in scales)
    return [Outcome(scale, results) for scale, results in found if results]


def write_report(tables: TableSet, table: ResultTable, store: RunStore) -> Path:
    """Writes the table beside the stored runs and returns the file."""
    text, path = markdown(tables, table, store), store.path.parent / f"{table.short_name}.md"
    write_atomically(path, lambda file: file.write(text.encode()))
    return path


def markdown(tables: TableSet, table: ResultTable, store: RunStore) -> str:
    """The table as Markdown: a line for each row and scale, and below it what `notes.md` beside the runs says of it.

    In the notes, the table has a heading `# TABLE`; a line `- LABEL: ...` is about the row of that label.
    """
    about_rows, about_table, not_run = _read_notes(tables, table, store)
    metrics = table.metrics or tables.metrics
    paper_metrics = {result.metric for row in table.rows for result in row.paper}
    has_paper_parameters, has_paper_epochs = _printed_columns(table)
    headings = [*table.columns, *(["parameters: paper"] if has_paper_parameters else []), "parameters"]
    headings += [*_number_columns(metrics, paper_metrics), *(["is"] if paper_metrics else [])]
    headings += ["seeds", "scale", *(["epochs: paper", "here"] if has_paper_epochs else ["epochs"]), "s per run"]
    lines: list[list[str]] = []
    for reference in _references(table, store):
        cells = [reference["label"], *[""] * (len(table.columns) - 1 + has_paper_parameters), "0"]
        for metric in metrics:
            cells += [""] if metric.name in paper_metrics else []
            cells.append(
                metric.number(reference["test"][metric.name]) if metric.name in reference["test"] else "not scored"
            )
        lines.append([*cells, *[""] * (len(headings) - len(cells))])
    circumstances: set[str] = set()
    for row in table.rows:
        found = outcomes(tables, row, store)
        for outcome in found or [None]:
            verdicts = [verdict(row, outcome)] if paper_metrics else []
            numbers = [*_numbers(row, outcome, metrics, paper_metrics), *verdicts]
            parameters, epochs = _printed(row)
            labels = [*row.labels, *([parameters] if has_paper_parameters else [])]
            if outcome is None:
                lines.append([*labels, "", *numbers, "0", "", *([epochs] if has_paper_epochs else []), "", ""])
                continue
            seconds = statistics.fmean(run["seconds"] for run in outcome.results)
            size = _size(table, outcome, store)
            ends = [*size, *([epochs] if has_paper_epochs else []), outcome.shown_epoch, f"{seconds:.0f}"]
            lines.append([*labels, outcome.shown_parameters, *numbers, *ends])
        for run in (run for outcome in found for run in outcome.results):
            data = f", data {run['data']}" if "data" in run else ""
            circumstances.add(f"{run['processor']}, torch {run['torch']}, commit {run['commit']}, {run['date']}{data}")
    dirty = (
        "Runs of a commit that ends in -dirty had changes that were not committed: they cannot be made again exactly."
    )
    source = f" Paper: {table.source}." if table.source else ""
    scales = "; ".join(f"{scale.name}: {scale.text}" for scale in tables.scales)
    parts = [
        f"# {table.title}",
        f"Made by `smoe reproduce {table.name}`.{source}",
        _grid(headings, lines),
        _picture(table, store, ""),
        f"{tables.metric_text} *Epochs* are those until the best weights. Scales: {scales}.",
        "\n".join(about_rows[row.label] for row in table.rows if row.label in about_rows),
        table.text,
        about_table,
        not_run,
        _command(tables, table, store),
        "\n".join(["Made with:", *(f"- {line}" for line in sorted(circumstances))] if circumstances else []),
        dirty if any("-dirty" in line for line in circumstances) else "",
        OTHER_DATA if any(OTHER in cell for line in lines for cell in line) else "",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def page(experiments: Iterable[tuple[TableSet, RunStore]]) -> str:
    """Every table of the paper beside ours, a line for each row: the largest scale that was run, and what it is."""
    parts = ["# The paper's tables beside ours", PAGE_TEXT]
    for tables, store in experiments:
        for table in tables.tables:
            paper_metrics = {result.metric for row in table.rows for result in row.paper}
            metrics = [metric for metric in table.metrics or tables.metrics if metric.name in paper_metrics]
            if not metrics:
                continue
            printed_columns = zip(("parameters", "epochs"), (0, 1), _printed_columns(table), strict=True)
            shown = [(column, place) for column, place, is_shown in printed_columns if is_shown]
            lines: list[list[str]] = []
            for row in table.rows:
                outcome = next(iter(outcomes(tables, row, store)), None)
                if outcome is None and not row.paper:
                    continue
                size = ["0", ""] if outcome is None else _size(table, outcome, store)
                here = ("", "") if outcome is None else (outcome.shown_parameters, outcome.shown_epoch)
                more_cells = [cell for _, place in shown for cell in (_printed(row)[place], here[place])]
                numbers = _numbers(row, outcome, metrics, paper_metrics)
                lines.append([*row.labels, *numbers, verdict(row, outcome), *size, *more_cells])
            more = f"{tables.name}/{table.short_name}.md"
            name = f"[{table.name}]({more})" if (store.path.parents[1] / more).exists() else table.name
            title = f"## {table.source[0].upper()}{table.source[1:]}: {table.title}"
            headings = [*table.columns, *_number_columns(metrics, paper_metrics), "is", "seeds", "scale"]
            headings += [f"{column}: {kind}" for column, _ in shown for kind in ("paper", "here")]
            picture = _picture(table, store, f"{tables.name}/")
            *_, not_run = _read_notes(tables, table, store)
            parts += [title, f"{name}. {tables.metric_text}", _grid(headings, lines), not_run]
            parts += [_command(tables, table, store), picture]
    return "\n\n".join(filter(None, parts)) + "\n"


PAGE_TEXT = """Made by `smoe reproduce page` from the stored runs. A row *is*

- reproduced: at the paper's size on its data, the means are no further apart than both standard deviations together,
  and ours is not larger than the paper's by more than a hundredth of the mean;
- differs: at the paper's size on its data, they are further apart, or our seeds are;
- smaller: run on the paper's data, but with fewer of them, or with smaller networks or fewer steps;
- simulated: run on simulated data, with smaller networks, which says nothing of the paper's numbers; *other data*:
  simulated at another time than those of the table's references;
- not run: no run is stored; why is said below the table;
- ours: a row that the paper does not have, if it was run.

*Epochs* are those until the best weights; the paper does not say which of its epochs it counts.

Figures 1 and 2 of the paper are drawings of the method, which [the report](../../docs/report.md) describes."""

OTHER = ", other data"
OTHER_DATA = "Rows of *other data* were simulated at another time; the references and all other rows are of one time."


def _references(table: ResultTable, store: RunStore) -> list[dict[str, Any]]:
    return list(filter(None, map(store.read_reference, table.references)))


def _size(table: ResultTable, outcome: Outcome, store: RunStore) -> list[str]:
    """Number of seeds and scale; simulated data that are not those of the table's references are named."""
    marks = {reference["data"] for reference in _references(table, store) if "data" in reference}
    is_simulated = outcome.scale.kind == "simulated" and marks
    is_other = is_simulated and any(run.get("data") not in marks for run in outcome.results)
    return [str(len(outcome.results)), outcome.scale.name + OTHER * bool(is_other)]


def _picture(table: ResultTable, store: RunStore, folder: str) -> str:
    name, caption = table.picture
    return f"![{caption}]({folder}{name})\n\n*{caption}.*" if name and store.path.with_name(name).exists() else ""


NOT_RUN = "Not run: "
"""Begins the paragraph of a table's notes that says why some of its rows have no run."""


def _read_notes(tables: TableSet, table: ResultTable, store: RunStore) -> tuple[dict[str, str], str, str]:
    """The lines about single rows by their labels, the rest, and if a row has no run, why that is."""
    path = store.path.with_name("notes.md")
    sections = re.split(r"^# (.+)\n", path.read_text() if path.exists() else "", flags=re.MULTILINE)
    notes = dict(zip(sections[1::2], sections[2::2], strict=True)).get(table.name, "").strip()
    about_rows: dict[str, str] = {}
    rest: list[str] = []
    for line in notes.splitlines():
        label = next((row.label for row in table.rows if line.startswith(f"- {row.label}: ")), None)
        if label is None:
            rest.append(line)
        else:
            about_rows[label] = line
    paragraphs = "\n".join(rest).strip().split("\n\n")
    reasons = [part for part in paragraphs if part.startswith(NOT_RUN)]
    is_complete = all(outcomes(tables, row, store) for row in table.rows)
    others = "\n\n".join(part for part in paragraphs if part not in reasons)
    return about_rows, others, "" if is_complete else "\n\n".join(reasons)


def _command(tables: TableSet, table: ResultTable, store: RunStore) -> str:
    """The command of the rows that have no run, at the scale that most of the others have."""
    found = [(row, outcomes(tables, row, store)) for row in table.rows]
    missing = [row for row, of_row in found if not of_row and row.can_run]
    if not missing:
        return ""
    used = [outcome.scale for _, of_row in found for outcome in of_row]
    scale = max(used, key=used.count) if used else tables.scales[min(1, len(tables.scales) - 1)]
    data = " --store DATA" if tables.data_field else ""
    others = {label for row, of_row in found if of_row for label in row.labels}
    common = [label for label in missing[0].labels if label not in others and all(label in r.labels for r in missing)]
    labels = common[:1] or [row.label for row in missing]
    command = f'smoe reproduce {table.name} --scale {scale.name} --seeds 1{data} --rows "ROW"'
    return f"Their command: `{command}`, where ROW is {' or '.join(f'`{label}`' for label in labels)}."


def _printed(row: Row) -> tuple[str, str]:
    """The paper's numbers of parameters and of epochs."""
    epochs = (str(result.epochs) for result in row.paper if result.epochs is not None)
    return next((result.parameters for result in row.paper), ""), next(epochs, "")


def _printed_columns(table: ResultTable) -> tuple[bool, bool]:
    """Whether the paper prints numbers of parameters and of epochs in this table."""
    parameters, epochs = zip(*map(_printed, table.rows), strict=True)
    return any(parameters), any(epochs)


def _number_columns(metrics: Sequence[ShownMetric], paper_metrics: set[str]) -> list[str]:
    """Headings of the numbers: a column of the paper's only where it prints something."""
    kinds = [(metric, kind) for metric in metrics for kind in ("paper", "here")]
    return [metric.column(kind) for metric, kind in kinds if kind == "here" or metric.name in paper_metrics]


def _numbers(
    row: Row, outcome: Outcome | None, metrics: Sequence[ShownMetric], paper_metrics: set[str]
) -> Iterator[str]:
    for metric in metrics:
        if metric.name in paper_metrics:
            result = next((result for result in row.paper if result.metric == metric.name), None)
            yield "" if result is None else f"{result.mean:.{metric.decimals}f} ± {result.spread:g}"
        yield "not run" if outcome is None else outcome.cell(metric)


def _grid(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [f"| {' | '.join(cells)} |" for cells in (headings, *lines)]
    return "\n".join([rows[0], "|" + "---|" * len(headings), *rows[1:]])


def percent(mean: float, spread: float | None = None, decimals: int = 1) -> str:
    """`91.3 ± 0.2`; 100.0 is printed for exactly 100 only."""
    text = f"{mean:.{decimals}f}"
    if text.startswith("100") and mean < 100.0:
        # Rounded down, with as many digits as it takes.
        digits = decimals + 1
        while f"{mean:.{digits}f}".startswith("100") and digits < 12:
            digits += 1
        text = f"{mean:.{digits}f}"
    if spread is None:
        return text
    short = "0" if spread == 0 else f"{spread:.{decimals}f}" if spread >= 0.5 * 10**-decimals else f"{spread:.1g}"
    return f"{text} ± {short}"
