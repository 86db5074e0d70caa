"""Which runs a set of tables needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from smoe.experiments.reproduction.run import PlannedRun
from smoe.experiments.reproduction.stored_runs import RunKey
from smoe.experiments.reproduction.tables import Experiment, ResultTable, Scale


def plan_runs(
    experiment: Experiment, tables: Sequence[ResultTable], scale: Scale, num_seeds: int, *, data: Path, only: str = ""
) -> list[PlannedRun]:
    """The runs of all rows, each once, all rows' first seed before any second: a stop leaves whole tables.

    Args:
        experiment: the tables are of.
        tables: some rows may stand in several of them.
        scale: of the data.
        num_seeds: of each row.
        data: where the data are kept, which all processes share.
        only: rows whose label, or whose table's name, contains this.
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
                recipe = experiment.with_data(replace(recipe, training=training), data)
                label = f"{table.name}: {row.label}, {scale.name}, seed {seed}"
                planned.setdefault(RunKey.of(recipe), PlannedRun(recipe, label))
    return list(planned.values())
