"""Scores of the raw ensembles, for the tables of their corrections."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from smoe_paper.ens10.raw import score_raw_ensemble
from smoe_paper.ens10.recipes import EnsembleData, EnsembleRecipe
from smoe_paper.ens10.setting import open_store
from smoe_paper.ens10.tables import reference_name, store_folder
from smoe_paper.experiments.result_tables.stored_runs import RunStore
from smoe_paper.experiments.result_tables.tables import ResultTable, Scale


def store_references(
    tables: Iterable[ResultTable], scale: Scale, folder: Path, store: RunStore, notify: Callable[[str], None]
) -> None:
    """Scores the ensemble of each store in the rows of the tables, on the rows' test years, unless it is stored.

    A missing store is reported and skipped; its rows cannot be trained.

    Args:
        tables: Tables whose rows give the stores.
        scale: Scale of the data.
        folder: Folder of the stores.
        store: Store of the scores.
        notify: Receives progress messages.
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
