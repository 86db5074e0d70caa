"""Tables of stored runs as Markdown: the paper's numbers beside ours."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smoe.atomic_files import write_atomically
from smoe.experiments.paper import PaperResult
from smoe.experiments.reproduction.stored_runs import RunKey, RunStore
from smoe.experiments.reproduction.tables import Experiment, ResultTable, Row, Scale


@dataclass(frozen=True)
class Outcome:
    """What the stored seeds of a row reached at a scale.

    Attributes:
        scale: of the data.
        results: stored runs, by seed.
        values: the metric of each run that did not diverge, in percent.
    """

    scale: Scale
    results: list[dict[str, Any]]
    values: list[float]

    @property
    def mean(self) -> float | None:
        """Over the seeds."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def spread(self) -> float:
        """Standard deviation over the seeds; 0 for one."""
        return statistics.stdev(self.values) if len(self.values) > 1 else 0.0

    @property
    def best_epoch(self) -> float | None:
        """Mean epoch of the best weights."""
        epochs = [result["best_epoch"] for result in self.results if result["best_epoch"] is not None]
        return statistics.fmean(epochs) if epochs else None

    def differs_from(self, paper: PaperResult) -> bool:
        """Whether the means are further apart than both spreads together, and than what printing rounds away."""
        return self.mean is None or abs(self.mean - paper.mean) > self.spread + paper.spread + 0.05


def outcomes(experiment: Experiment, row: Row, store: RunStore) -> list[Outcome]:
    """What is stored of a row, the largest scale first."""
    found: list[Outcome] = []
    for scale in experiment.scales:
        results = store.read_all_seeds(RunKey.of(scale.recipe(row, seed=0)).digest)
        values = [run["test"][experiment.metric] for run in results if experiment.metric in run["test"]]
        if results:
            found.append(Outcome(scale, results, values))
    return found


def write_report(experiment: Experiment, table: ResultTable, store: RunStore, path: Path) -> None:
    """Writes a table of what is stored so far as Markdown."""
    text = markdown(experiment, table, store)
    write_atomically(path, lambda file: file.write(text.encode()))


def markdown(experiment: Experiment, table: ResultTable, store: RunStore) -> str:
    """The table as Markdown: a line for each row and scale, and the notes below."""
    headings = [*table.columns, "parameters", "paper", "here", "seeds", "scale", "epochs: paper", "here", "s per run"]
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    notes: list[str] = []
    circumstances: set[str] = set()
    for row in table.rows:
        found = outcomes(experiment, row, store)
        lines += [_line(row, outcome) for outcome in found] or [_empty_line(row)]
        for run in (run for outcome in found for run in outcome.results):
            circumstances.add(f"{run['processor']}, torch {run['torch']}, commit {run['commit']}, {run['date']}")
        if row.note:
            notes.append(f"- {row.label}: {row.note}")
        elif row.paper is not None and found and found[0].differs_from(row.paper):
            notes.append(f"- {row.label}: differs from the paper by more than the spread of both; not explained yet.")
    source = f" Paper: {table.source}." if table.source else ""
    scales = "; ".join(f"{scale.name}: {scale.text}" for scale in experiment.scales)
    legend = f"{experiment.metric_text} *Epochs* are those until the best weights. Scales: {scales}."
    parts = [
        [f"# {table.title}"],
        [f"Made by `smoe reproduce {table.name}`.{source}"],
        lines,
        [legend],
        notes,
        [table.text] if table.text else [],
        ["Made with:", *(f"- {line}" for line in sorted(circumstances))] if circumstances else [],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def percent(mean: float, spread: float | None = None) -> str:
    """`91.3 ± 0.2`; 100.0 is said of exactly 100 only."""
    text = f"{mean:.1f}"
    if text == "100.0" and mean < 100.0:
        # Rounded down, with as many digits as it takes.
        digits = 2
        while f"{mean:.{digits}f}".startswith("100") and digits < 12:
            digits += 1
        text = f"{mean:.{digits}f}"
    return text if spread is None else f"{text} ± {_short(spread)}"


def _short(spread: float) -> str:
    return "0" if spread == 0 else f"{spread:.1f}" if spread >= 0.05 else f"{spread:.1g}"


def _line(row: Row, outcome: Outcome) -> str:
    first = outcome.results[0]
    gate = first["gate_parameters"]
    seconds = statistics.fmean(run["seconds"] for run in outcome.results)
    num_diverged = len(outcome.results) - len(outcome.values)
    mean = outcome.mean
    here = "diverged" if mean is None else percent(mean, outcome.spread if len(outcome.values) > 1 else None)
    cells = [
        *row.labels,
        f"{first['parameters']}+{gate}" if gate else str(first["parameters"]),
        _paper(row),
        here + (f" ({num_diverged} diverged)" if num_diverged and mean is not None else ""),
        str(len(outcome.results)),
        outcome.scale.name,
        _paper_epochs(row),
        "" if outcome.best_epoch is None else f"{outcome.best_epoch:.0f}",
        f"{seconds:.0f}",
    ]
    return "| " + " | ".join(cells) + " |"


def _empty_line(row: Row) -> str:
    return "| " + " | ".join([*row.labels, "", _paper(row), "", "0", "", _paper_epochs(row), "", ""]) + " |"


def _paper(row: Row) -> str:
    return "" if row.paper is None else f"{row.paper.mean:.1f} ± {row.paper.spread:g}"


def _paper_epochs(row: Row) -> str:
    return "" if row.paper is None or row.paper.epochs is None else str(row.paper.epochs)
