"""Tables of results: rows are recipes with what the paper prints for them, beside stored runs. Imports no torch."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Sequence
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


@dataclass(frozen=True)
class ShownMetric:
    """A metric of the test split that tables show.

    Attributes:
        heading: Heading before `paper` and `here`; empty if it is the only metric.
    """

    name: str
    heading: str = ""
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
    """One line of a table.

    Attributes:
        can_train: Whether the library can still train the recipe. Otherwise the row only shows its stored runs.
    """

    labels: tuple[str, ...]
    recipe: Recipe
    paper: tuple[PublishedResult, ...] = ()
    can_train: bool = True

    @property
    def label(self) -> str:
        return ", ".join(self.labels)

    def paper_result(self, metric: str) -> PublishedResult | None:
        return next((result for result in self.paper if result.metric == metric), None)


@dataclass(frozen=True)
class ResultTable:
    """A table.

    Attributes:
        name: Name on the command line, such as `heat/gates`.
        text: Description of the set-up. Statements about results belong into `notes.md` beside the results.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    source: str = ""
    text: str = ""
    references: tuple[str, ...] = ()
    metrics: tuple[ShownMetric, ...] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row.labels) != len(self.columns):
                raise ValueError(f"{self.name}: {row.labels} does not fit the columns {self.columns}")

    @property
    def short_name(self) -> str:
        """The name within the experiment, such as `gates`."""
        return self.name.partition("/")[2]


def make_table(
    name: str, title: str, columns: str, rows: Iterable[tuple[Any, ...]], source: str = "", **options: Any
) -> ResultTable:
    """A table of rows `(labels, recipe, *published results)`, with labels and columns divided by `; `."""
    made = tuple(Row(tuple(labels.split("; ")), recipe, tuple(paper)) for labels, recipe, *paper in rows)
    return ResultTable(name, title, tuple(columns.split("; ")), made, source, **options)


@dataclass(frozen=True)
class Scale:
    """A size of the experiment.

    Attributes:
        kind: `paper` for the paper's data and size; `smaller`; or `simulated`, with other data.
    """

    name: str
    text: str
    # Takes recipes of its own experiment.
    apply: Callable[[Any], Recipe] = lambda recipe: recipe
    kind: Literal["paper", "smaller", "simulated"] = "paper"

    def recipe(self, row: Row, seed: int) -> Recipe:
        return replace(self.apply(row.recipe), seed=seed)


@dataclass(frozen=True)
class TableSet:
    """All tables of an experiment.

    Attributes:
        data_folder: Place of a recipe's data in the folder that a user names; that folder itself if not given.
    """

    name: str
    metrics: tuple[ShownMetric, ...]
    metric_text: str
    tables: tuple[ResultTable, ...]
    scales: tuple[Scale, ...]
    data_field: str
    data_folder: Callable[[Any, Path], Path] | None = None

    def with_data(self, recipe: Recipe, path: Path) -> Recipe:
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
    def best_epoch(self) -> float | None:
        epochs = [result["best_epoch"] for result in self.results if result["best_epoch"] is not None]
        return statistics.fmean(epochs) if epochs else None

    def differs_from(self, paper: PublishedResult) -> bool:
        """Whether the means are further apart than both spreads together, and than what printing rounds away."""
        mean = self.mean(paper.metric)
        return mean is None or abs(mean - paper.mean) > self.spread(paper.metric) + paper.spread + 0.05

    def cell(self, metric: ShownMetric) -> str:
        mean, values = self.mean(metric.name), self.values(metric.name)
        if mean is None:
            return "diverged"
        num_diverged = len(self.results) - len(values)
        text = metric.number(mean, self.spread(metric.name) if len(values) > 1 else None)
        return text + (f" ({num_diverged} diverged)" if num_diverged else "")


def verdict(row: Row, outcome: Outcome | None) -> str:
    """What a row is beside the paper's: not run, simulated, smaller, differs or reproduced; ours if it has no such row.

    A row is reproduced if the means are no further apart than both standard deviations together.
    """
    if not row.paper:
        return "ours"
    if outcome is None:
        return "not run"
    if outcome.scale.kind != "paper":
        return outcome.scale.kind
    return "differs" if any(outcome.differs_from(result) for result in row.paper) else "reproduced"


def outcomes(tables: TableSet, row: Row, store: RunStore) -> list[Outcome]:
    """What is stored of a row, the largest scale first."""
    found = ((scale, store.read_all_seeds(scale.recipe(row, seed=0))) for scale in tables.scales)
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
    about_rows, about_table = _read_notes(store.path.with_name("notes.md"), table)
    layout = _Layout(tables, table)
    lines = [_line(layout.headings()), "|" + "---|" * len(layout.headings())]
    for name in table.references:
        reference = store.read_reference(name)
        lines += [] if reference is None else [layout.reference_line(reference)]
    remarks: list[str] = []
    circumstances: set[str] = set()
    for row in table.rows:
        found = outcomes(tables, row, store)
        lines += [layout.result_line(row, outcome) for outcome in found or [None]]
        for run in (run for outcome in found for run in outcome.results):
            circumstances.add(f"{run['processor']}, torch {run['torch']}, commit {run['commit']}, {run['date']}")
        if row.label in about_rows:
            remarks.append(about_rows[row.label])
    source = f" Paper: {table.source}." if table.source else ""
    scales = "; ".join(f"{scale.name}: {scale.text}" for scale in tables.scales)
    legend = f"{tables.metric_text} *Epochs* are those until the best weights. Scales: {scales}."
    parts = [
        [f"# {table.title}"],
        [f"Made by `smoe reproduce {table.name}`.{source}"],
        lines,
        [legend],
        remarks,
        [table.text] if table.text else [],
        [about_table] if about_table else [],
        ["Made with:", *(f"- {line}" for line in sorted(circumstances))] if circumstances else [],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def page(experiments: Iterable[tuple[TableSet, RunStore]]) -> str:
    """Every table of the paper beside ours, a line for each row: the largest scale that was run, and what it is."""
    parts = ["# The paper's tables beside ours", PAGE_TEXT]
    for tables, store in experiments:
        for table in tables.tables:
            layout = _Layout(tables, table)
            metrics = [metric for metric in layout.metrics if metric.name in layout.of_paper]
            if not metrics:
                continue
            columns = [metric.column(kind) for metric in metrics for kind in ("paper", "here")]
            headings = [*table.columns, *columns, "is", "seeds", "scale"]
            lines = [_line(headings), "|" + "---|" * len(headings)]
            for row in table.rows:
                outcome = next(iter(outcomes(tables, row, store)), None)
                cells = [
                    cell
                    for metric in metrics
                    for cell in (_paper(row, metric), "" if outcome is None else outcome.cell(metric))
                ]
                size = ["0", ""] if outcome is None else [str(len(outcome.results)), outcome.scale.name]
                lines.append(_line([*row.labels, *cells, verdict(row, outcome), *size]))
            more = f"{tables.name}/{table.short_name}.md"
            name = f"[{table.name}]({more})" if (store.path.parents[1] / more).exists() else table.name
            title = f"## {table.source[0].upper()}{table.source[1:]}: {table.title}"
            parts += [title, f"{name}. {tables.metric_text}", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


PAGE_TEXT = """Made by `smoe reproduce page` from the stored runs. A row *is*

- reproduced: at the paper's size on its data, the means are no further apart than both standard deviations together;
- differs: at the paper's size on its data, they are;
- smaller: run on the paper's data, but with fewer of them, or with smaller networks or fewer steps;
- simulated: run on simulated data, with smaller networks, which says nothing of the paper's numbers;
- not run: no run is stored;
- ours: a row that the paper does not have."""


def _read_notes(path: Path, table: ResultTable) -> tuple[dict[str, str], str]:
    """The lines about single rows by their labels, and the rest."""
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
    return about_rows, "\n".join(rest).strip()


class _Layout:
    """The columns of a table: those of the paper only if it prints something in them."""

    def __init__(self, tables: TableSet, table: ResultTable) -> None:
        self.table = table
        self.metrics = table.metrics or tables.metrics
        self.of_paper = {metric.name for metric in self.metrics if any(r.paper_result(metric.name) for r in table.rows)}
        self.has_paper_epochs = any(result.epochs is not None for row in table.rows for result in row.paper)

    def headings(self) -> list[str]:
        numbers = [
            metric.column(kind)
            for metric in self.metrics
            for kind in ("paper", "here")
            if kind == "here" or metric.name in self.of_paper
        ]
        epochs = ["epochs: paper", "here"] if self.has_paper_epochs else ["epochs"]
        verdict = ["is"] if self.of_paper else []
        return [*self.table.columns, "parameters", *numbers, *verdict, "seeds", "scale", *epochs, "s per run"]

    def result_line(self, row: Row, outcome: Outcome | None) -> str:
        """The line of a row at a scale; without an outcome, with the paper's numbers only."""
        numbers: list[str] = []
        for metric in self.metrics:
            numbers += [_paper(row, metric)] if metric.name in self.of_paper else []
            numbers.append("" if outcome is None else outcome.cell(metric))
        paper_epochs = next((str(result.epochs) for result in row.paper if result.epochs is not None), "")
        epochs = [paper_epochs] if self.has_paper_epochs else []
        if self.of_paper:
            numbers.append(verdict(row, outcome))
        if outcome is None:
            return _line([*row.labels, "", *numbers, "0", "", *epochs, "", ""])
        first = outcome.results[0]
        gate = first["gate_parameters"]
        parameters = f"{first['parameters']}+{gate}" if gate else str(first["parameters"])
        best_epoch = "" if outcome.best_epoch is None else f"{outcome.best_epoch:.0f}"
        seconds = statistics.fmean(run["seconds"] for run in outcome.results)
        seeds = str(len(outcome.results))
        return _line(
            [*row.labels, parameters, *numbers, seeds, outcome.scale.name, *epochs, best_epoch, f"{seconds:.0f}"]
        )

    def reference_line(self, reference: dict[str, Any]) -> str:
        labels = [reference["label"], *[""] * (len(self.table.columns) - 1)]
        numbers: list[str] = []
        for metric in self.metrics:
            numbers += [""] if metric.name in self.of_paper else []
            numbers.append(metric.number(reference["test"][metric.name]))
        num_others = len(self.headings()) - len(labels) - len(numbers) - 1
        return _line([*labels, "0", *numbers, *[""] * num_others])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _paper(row: Row, metric: ShownMetric) -> str:
    result = row.paper_result(metric.name)
    if result is None:
        return ""
    return f"{result.mean:.{metric.decimals}f}" + (f" ± {result.spread:g}" if metric.is_percentage else "")


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
