"""Figures of the heat tables, drawn from stored runs. The pictures of one run are in `pictures`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from smoe.training.run_directory import RunDirectory
from smoe_paper.experiments.result_tables.report import Outcome, outcomes
from smoe_paper.experiments.result_tables.stored_runs import RunKey, RunStore
from smoe_paper.experiments.result_tables.tables import ResultTable, Row, TableSet
from smoe_paper.experiments.runs import open_run
from smoe_paper.heat.pictures import learned
from smoe_paper.heat.recipes import HeatDiffusion
from smoe_paper.heat.tables import DAMPINGS, QUANTILES, SMOE, grid_recipe

METRIC = "within_1_percent"


def draw_figures(
    table_set: TableSet, tables: Sequence[ResultTable], store: RunStore, runs_dir: Path, output_dir: Path
) -> list[Path]:
    """Draws the figures that the stored runs of the tables allow, and returns their paths.

    Args:
        table_set: All tables of the experiment.
        tables: Tables to draw; the main table has three figures, the table of quantiles and damping one.
        store: Finished runs.
        runs_dir: Folder with the weights of runs made here; without them the routing is not drawn.
        output_dir: Folder for the pictures.
    """
    pictures: list[Path] = []
    names = {table.name: table for table in tables}
    if "heat/main" in names:
        rows = names["heat/main"].rows
        pictures += _draw_routing(table_set, runs_dir, store, output_dir / "routing.png")
        pictures += _draw_models(table_set, rows, store, output_dir)
    if "heat/quantile-damping" in names:
        pictures += _draw_quantile_damping(table_set, store, output_dir / "quantile-damping.png")
    return pictures


def _draw_routing(table_set: TableSet, runs_dir: Path, store: RunStore, path: Path) -> Iterator[Path]:
    from smoe_paper.heat.views import draw_routing

    for scale in table_set.scales:
        key = RunKey.of(scale.recipe(Row(("SMoE",), SMOE), 0))
        folder = runs_dir / key.name
        if store.has(key) and RunDirectory(folder).best_checkpoint.exists():
            draw_routing(*learned(open_run(folder)), path)
            yield path
            return


def _draw_models(table_set: TableSet, rows: Sequence[Row], store: RunStore, folder: Path) -> Iterator[Path]:
    from smoe.views import draw_accuracies, draw_region_accuracies

    found = {row.label: outcomes(table_set, row, store) for row in rows}
    first_runs = {label: all_of_it[0].results[0] for label, all_of_it in found.items() if all_of_it}
    curves = {label: [value or 0.0 for value in run["validation"]] for label, run in first_runs.items()}
    if not curves:
        return
    # Not all models were trained at the same scale.
    lengths = {
        label: run["recipe"]["data"]["num_train_runs"] / HeatDiffusion().num_train_runs
        for label, run in first_runs.items()
    }
    label = "validation pixels within 1 %, in %"
    draw_accuracies(
        curves, folder / "accuracy.png", label=label, epoch_lengths=lengths, unit="epochs of the paper's data"
    )
    yield folder / "accuracy.png"
    diffusivities = HeatDiffusion().diffusivities
    accuracies = {label: _by_region(run, len(diffusivities)) for label, run in first_runs.items() if run["test"]}
    if accuracies:
        names = [f"diffusivity {diffusivity:g}" for diffusivity in diffusivities]
        draw_region_accuracies(accuracies, names, folder / "regions.png", label="test pixels within 1 %, in %")
        yield folder / "regions.png"


def _by_region(run: dict[str, Any], num_regions: int) -> list[float]:
    return [run["test"][f"within_1_percent/region_{region}"] for region in range(num_regions)]


def _draw_quantile_damping(table_set: TableSet, store: RunStore, path: Path) -> Iterator[Path]:
    from smoe.views import Panel, draw_grids

    cells = {
        (row, column): outcomes(table_set, Row(("",), grid_recipe(quantile, damping)), store)
        for row, quantile in enumerate(QUANTILES)
        for column, damping in enumerate(DAMPINGS)
    }
    # Epochs of different scales cannot be compared: the scale of most cells is drawn.
    scales = Counter(outcome.scale.name for found in cells.values() for outcome in found)
    if not scales:
        return
    scale = scales.most_common(1)[0][0]
    accuracy = np.full((len(QUANTILES), len(DAMPINGS)), np.nan)
    epochs = accuracy.copy()
    for place, found in cells.items():
        for outcome in found:
            if outcome.scale.name == scale:
                accuracy[place] = _value(outcome.mean(METRIC))
                epochs[place] = _epochs_to_all(outcome)
    draw_grids(
        [
            Panel("test pixels within 1 %, in %", accuracy),
            Panel(f"{scale} epochs to 100 % (blank: not all seeds)", epochs, decimals=0, palette="viridis_r"),
        ],
        [f"{quantile:g}" for quantile in QUANTILES],
        ["none" if damping is None else f"{damping:g}" for damping in DAMPINGS],
        path,
        row_title="error quantile",
        column_title="damping factor",
    )
    yield path


def _value(mean: float | None) -> float:
    return np.nan if mean is None else mean


def _epochs_to_all(outcome: Outcome) -> float:
    """Mean number of epochs to 100 %; NaN if a seed did not reach it."""
    values = outcome.values(METRIC)
    is_everywhere = len(values) == len(outcome.results) and min(values, default=0.0) == 100.0
    return outcome.best_epoch or np.nan if is_everywhere else np.nan
