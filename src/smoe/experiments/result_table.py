"""Results beside the paper's, for people."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from smoe.experiments.paper import PAPER_RESULTS


def print_result(
    name: str,
    split: str,
    values: Mapping[str, float],
    output_dir: Path,
    *,
    epochs: int | None = None,
    seconds: float | None = None,
) -> None:
    """The metrics of a run on a split; beside the paper's, which are of the test split."""
    paper = PAPER_RESULTS.get(name) if split == "test" else None
    table = Table(title=f"{name}, {split} split", title_justify="left")
    for header in ("metric", "here", "paper"):
        table.add_column(header, justify="left" if header == "metric" else "right")
    for metric, value in values.items():
        is_printed = paper is not None and metric == paper.metric
        table.add_row(metric, format_value(value), f"{paper.mean} ± {paper.spread:g}" if paper and is_printed else "")
    if epochs is not None:
        table.add_row("epochs", str(epochs), str(paper.epochs) if paper and paper.epochs is not None else "")
    if seconds is not None:
        table.add_row("seconds", f"{seconds:.0f}", "")
    console = Console(highlight=False)
    console.print(table)
    console.print(f"run directory: {output_dir}", markup=False, soft_wrap=True)


def format_value(value: float) -> str:
    """Percentages with their digits, small errors in exponent form."""
    return f"{value:.4f}" if abs(value) >= 1e-2 else f"{value:.3e}"
