"""Which runs a set of tables needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from smoe.experiments.reproduction.run import PlannedRun
from smoe.experiments.result_tables.stored_runs import RunKey
from smoe.experiments.result_tables.tables import ResultTable, Scale, TableSet


def plan_runs(
    table_set: TableSet, tables: Sequence[ResultTable], scale: Scale, num_seeds: int, *, data: Path, only: str = ""
) -> list[PlannedRun]:
    """The runs of all rows, each once; the first seed of all rows comes before any second.

    Args:
        table_set: All tables of the experiment.
        tables: Tables to make; a row may stand in several of them.
        scale: Size of the experiment.
        num_seeds: Number of seeds of each row.
        data: Place of the data, which all processes share.
        only: Make only rows whose label, or whose table's name, contains this text.
    """
    planned: dict[RunKey, PlannedRun] = {}
    for seed in range(num_seeds):
        for table in tables:
            for row in table.rows:
                if only.lower() not in f"{table.name} {row.label}".lower():
                    continue
                recipe = scale.recipe(row, seed)
                # The threads are those of the process that trains it.
                training = replace(recipe.training, num_threads=None)
                recipe = table_set.with_data(replace(recipe, training=training), data)
                label = f"{table.name}: {row.label}, {scale.name}, seed {seed}"
                planned.setdefault(RunKey.of(recipe), PlannedRun(recipe, label))
    return list(planned.values())
