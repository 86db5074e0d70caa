"""Figures of tables, from stored runs: the validation loss by epoch, and how the routing moved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from smoe_paper.experiments.result_tables.report import outcomes
from smoe_paper.experiments.result_tables.stored_runs import RunStore
from smoe_paper.experiments.result_tables.tables import ResultTable, TableSet


def draw_figures(table_set: TableSet, tables: Sequence[ResultTable], store: RunStore, output_dir: Path) -> list[Path]:
    """Draws the validation loss by epoch for each table, and how the routing moved; returns the pictures.

    Args:
        table_set: All tables of the experiment.
        tables: Tables whose rows are drawn.
        store: Finished runs.
        output_dir: Folder of the pictures.
    """
    return [picture for table in tables for picture in _draw_table(table_set, table, store, output_dir)]


def _draw_table(table_set: TableSet, table: ResultTable, store: RunStore, folder: Path) -> Iterator[Path]:
    from smoe.views import draw_epochs

    found = {row.label: outcomes(table_set, row, store) for row in table.rows}
    # The first seed of the largest scale that was trained.
    runs = {label: all_of_it[0].results[0] for label, all_of_it in found.items() if all_of_it}
    losses = {label: run["validation"] for label, run in runs.items() if run["validation"]}
    if not losses:
        return
    name = table.short_name
    draw_epochs({"validation loss": losses}, folder / f"{name}.png")
    yield folder / f"{name}.png"
    panels = {
        quantity: {label: _percent(run, key) for label, run in runs.items() if _percent(run, key)}
        for key, quantity in (
            ("routing/changed", "choices changed in an epoch, in %"),
            ("routing/changed_since_start", "changed since the start, in %"),
            ("routing/reordered", "places reordered in an epoch, in %"),
            ("routing/region_information", "what a choice says of the known regions, in %"),
        )
    }
    panels = {quantity: curves for quantity, curves in panels.items() if curves}
    if panels:
        draw_epochs(panels, folder / f"{name}-changes.png")
        yield folder / f"{name}-changes.png"


def _percent(run: dict[str, Any], key: str) -> list[float]:
    """Of an epoch each; empty for a net whose gates cannot learn."""
    shares = run.get("routing", {}).get(key, [])
    return [100.0 * share for share in shares] if any(shares) else []
