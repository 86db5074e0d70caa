"""Figures of the tables of small images, drawn from stored runs. The pictures of one run are in `pictures`."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from smoe.training.run_directory import RunDirectory
from smoe_paper.experiments.result_tables.report import Outcome, outcomes
from smoe_paper.experiments.result_tables.stored_runs import RunKey, RunStore
from smoe_paper.experiments.result_tables.tables import ResultTable, Row, TableSet
from smoe_paper.experiments.runs import open_run
from smoe_paper.images.data.catalogue import IMAGE_SETS
from smoe_paper.images.pictures import draw_routing_of
from smoe_paper.images.recipes import IMAGE_RECIPES


def draw_figures(
    table_set: TableSet, tables: Sequence[ResultTable], store: RunStore, runs_dir: Path, output_dir: Path, data: Path
) -> list[Path]:
    """Draws the figures that the stored runs of the tables allow, and returns their paths.

    Args:
        table_set: All tables of the experiment.
        tables: Tables to draw; each table of an image set has two figures: errors by class and the SMoE's routing.
        store: Finished runs.
        runs_dir: Folder with the weights of runs made here; without them the routing is not drawn.
        output_dir: Folder for the pictures.
        data: Folder of the images.
    """
    pictures: list[Path] = []
    for table in tables:
        name = table.name.partition("/")[2]
        if name in IMAGE_SETS:
            pictures += _draw_errors(table_set, table, name, store, output_dir / f"{name}-errors.png")
            pictures += _draw_routing(table_set, name, store, runs_dir, output_dir, data)
    return pictures


def _draw_errors(table_set: TableSet, table: ResultTable, name: str, store: RunStore, path: Path) -> Iterator[Path]:
    from smoe.views import Panel, draw_grids

    classes = IMAGE_SETS[name].classes
    found = {row.label: outcomes(table_set, row, store) for row in table.rows}
    # Not all models were trained at the same scales: the label contains the scale.
    errors = {
        f"{label} ({outcome.scale.name})": _errors(outcome, len(classes))
        for label, all_of_it in found.items()
        for outcome in all_of_it
    }
    if not errors:
        return
    panel = Panel("errors on the test images of each class, in %", np.array(list(errors.values())), palette="YlOrRd")
    draw_grids([panel], list(errors), classes, path, row_title="", column_title="class")
    yield path


def _errors(outcome: Outcome, num_classes: int) -> list[float]:
    values = (outcome.values(f"error/class_{number}") for number in range(num_classes))
    return [statistics.fmean(seeds) if seeds else float("nan") for seeds in values]


def _draw_routing(
    table_set: TableSet, name: str, store: RunStore, runs_dir: Path, output_dir: Path, data: Path
) -> Iterator[Path]:
    for scale in table_set.scales:
        key = RunKey.of(scale.recipe(Row(("SMoE",), IMAGE_RECIPES[f"{name}/smoe"]), 0))
        folder = runs_dir / key.name
        if store.has(key) and RunDirectory(folder).best_checkpoint.exists():
            run = open_run(folder, splits=("test",), notify=_silence, data={"root": data})
            yield from draw_routing_of(run, "test", output_dir, f"{name}-routing", title=f"{name}/smoe")
            return


def _silence(_: str) -> None:
    pass
