"""Scores of the ensembles as they are, for the tables of their corrections."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from smoe.experiments.result_tables.stored_runs import RunStore
from smoe.experiments.result_tables.tables import ResultTable, Scale
from smoe.paper.ens10.raw import score_raw_ensemble
from smoe.paper.ens10.recipes import EnsembleData, EnsembleRecipe
from smoe.paper.ens10.setting import open_store
from smoe.paper.ens10.tables import reference_name, store_folder


def store_references(
    tables: Iterable[ResultTable], scale: Scale, folder: Path, store: RunStore, notify: Callable[[str], None]
) -> None:
    """Scores the ensemble of each store that the tables' rows use, on the rows' test years, unless it is stored.

    A store that is not there is passed by and said: its rows cannot be trained, but those of the others can.

    Args:
        tables: whose rows say which stores.
        scale: of the data.
        folder: of the stores.
        store: receives the scores.
        notify: Receives messages about what is being scored.
    """
    wanted: dict[str, EnsembleData] = {}
    for table in tables:
        for row in table.rows:
            recipe = scale.recipe(row, seed=0)
            assert isinstance(recipe, EnsembleRecipe)
            assert recipe.data.task is not None
            assert recipe.data.members is not None
            wanted[reference_name(recipe.data.task, recipe.data.members, scale.name)] = recipe.data
    for name, data in wanted.items():
        path = store_folder(data, folder)
        if store.read_reference(name) is not None:
            continue
        if not path.exists():
            command = f"smoe data prepare ens10 --output {path} --task {data.task} --members {data.members}"
            notify(f"there is no store {path}: {command} makes it")
            continue
        notify(f"scoring the raw ensemble of {path.name}")
        scores = score_raw_ensemble(open_store(replace(data, store=path)), data.test_years)
        label = f"raw ensemble, {data.members} members, {scale.name}"
        store.write_reference(name, {"label": label, "test": scores})
