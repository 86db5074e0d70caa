"""Prints the results of a run beside the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from smoe_paper.experiments.tables import PublishedResult


def print_result(
    name: str,
    split: str,
    values: Mapping[str, float],
    output_dir: Path,
    published: Sequence[PublishedResult] = (),
    *,
    epochs: int | None = None,
    seconds: float | None = None,
) -> None:
    """Prints the metrics of a run on a split, on the test split beside the paper's."""
    paper = {result.metric: result for result in published if split == "test"}
    table = Table(title=f"{name}, {split} split", title_justify="left")
    for header in ("metric", "here", "paper"):
        table.add_column(header, justify="left" if header == "metric" else "right")
    for metric, value in values.items():
        result = paper.get(metric)
        table.add_row(metric, format_value(value), "" if result is None else f"{result.mean} ± {result.spread:g}")
    if epochs is not None:
        paper_epochs = next((str(result.epochs) for result in paper.values() if result.epochs is not None), "")
        table.add_row("epochs", str(epochs), paper_epochs)
    if seconds is not None:
        table.add_row("seconds", f"{seconds:.0f}", "")
    console = Console(highlight=False)
    console.print(table)
    console.print(f"run directory: {output_dir}", markup=False, soft_wrap=True)


def format_value(value: float) -> str:
    """Percentages with their digits, small errors in exponent form."""
    return f"{value:.4f}" if abs(value) >= 1e-2 else f"{value:.3e}"
