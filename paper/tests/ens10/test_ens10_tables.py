from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ens10_files import STARTS, write_ens10, write_index
from memory_ensemble import tiny_recipe
from memory_source import Silent
from smoe.errors import DataError
from smoe_paper.ens10.model import open_store
from smoe_paper.ens10.prepare import prepare
from smoe_paper.ens10.recipes import ENS10, EnsembleData, EnsembleRecipe, SpatialMoEUNetModel, UNetModel, store_folder
from smoe_paper.ens10.scores import store_references
from smoe_paper.ens10.source import TASKS, open_ens10
from smoe_paper.experiments.runs import plan_runs, train_run
from smoe_paper.experiments.stored_runs import RunKey, RunStore
from smoe_paper.experiments.tables import Scale, markdown

YEARS = {"train_years": (1998, 1998), "validation_years": (1999, 1999), "test_years": (2000, 2000)}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of stores with one in it, T850 of ten members."""
    folder = tmp_path_factory.mktemp("stores")
    root = write_ens10(tmp_path_factory.mktemp("files"), "t850")
    write_index(root / "efi_t850.nc", STARTS)
    source = open_ens10(root, TASKS["t850"], 10)
    prepare(source, root, folder / "t850-10", (1998, 1998), Silent())
    return folder


def tiny_scale(name: str = "small") -> Scale:
    """Rows of one epoch and four filters on the tiny store, under the name of a scale."""

    def shrink(recipe: EnsembleRecipe) -> EnsembleRecipe:
        small = isinstance(recipe.model, UNetModel | SpatialMoEUNetModel)
        model = replace(recipe.model, filters=4) if small else recipe.model
        data = replace(recipe.data, **YEARS)
        return replace(tiny_recipe("ens10/smoe"), model=model, data=data, rule=recipe.rule)

    return Scale(name, "tiny", shrink, kind="simulated")


def test_rows_are_distinct_and_say_what_the_paper_says() -> None:
    for scale in ENS10.tables.scales:
        for table in ENS10.tables.tables:
            keys = [RunKey.of(scale.recipe(row, 0)) for row in table.rows]
            assert len(set(keys)) == len(keys), table.name
    z500, t850, t2m, routing = ENS10.tables.tables
    printed = {row.label: [result.mean for result in row.paper] for row in t2m.rows if row.paper}
    assert len(printed) == 6 and printed["SMoE U-Net, 10 members"] == [0.594, 0.190]
    assert [[result.mean for result in row.paper] for row in z500.rows[:2]] == [[79.12, 29.21], [76.54, 27.78]]
    assert not any(row.paper for row in routing.rows)
    # The paper's own setting of the gates is trained once, for both tables.
    keys = {row.label: RunKey.of(row.recipe) for row in t850.rows}
    assert RunKey.of(routing.rows[1].recipe) == keys["SMoE U-Net, 10 members"]


def test_each_row_finds_its_own_store() -> None:
    planned = plan_runs(ENS10.tables, [ENS10.tables.tables[0]], ENS10.tables.scale("small"), 1, data=Path("stores"))
    found = {str(run.recipe.data.store) for run in planned}  # pyright: ignore[reportAttributeAccessIssue]
    assert found == {"stores/z500-5", "stores/z500-10"}
    assert len({run.key for run in planned}) == 20


def test_a_store_of_another_task_or_number_of_members_is_refused(stores: Path) -> None:
    path = stores / "t850-10"
    assert open_store(EnsembleData(path, task="t850", members=10)).task == "t850"
    with pytest.raises(DataError, match=r"is of t850 with 10 members, but data.task is z500: .* --task z500"):
        open_store(EnsembleData(path, task="z500"))
    with pytest.raises(DataError, match=r"but data\.members is 5"):
        open_store(EnsembleData(path, members=5))


def test_a_table_is_trained_and_stands_beside_the_raw_ensemble(stores: Path, tmp_path: Path) -> None:
    table, scale, store = ENS10.tables.tables[1], tiny_scale(), RunStore(tmp_path / "runs.jsonl")
    said: list[str] = []
    store_references([table], scale, stores, store, said.append)
    assert [text for text in said if "scoring" in text] == ["scoring the raw ensemble of t850-10"]
    assert any("t850-5: smoe data prepare ens10" in text for text in said)
    said.clear()
    store_references([table], scale, stores, store, said.append)
    assert not any("scoring" in text for text in said)
    for run in plan_runs(ENS10.tables, [table], scale, 1, data=stores, only="10 members"):
        store.write(run.key, train_run(run, tmp_path / "folders") or {})
    experiment = replace(ENS10.tables, scales=(scale,))
    text = markdown(experiment, table, store)
    assert f", data {open_store(EnsembleData(stores / 't850-10')).checksum[:8]}" in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    raw = next(line for line in lines if "raw ensemble, 10 members, small" in line)
    assert float(raw.split("|")[5]) > 0.0
    trained = [line for line in lines if "| 10 members |" in line]
    labels = [line.split("|")[1].strip() for line in trained]
    assert labels[:3] == ["EMOS", "U-Net", "SMoE U-Net"] and len(labels) == 10
    assert all(float(line.split("|")[5]) > 0.0 and float(line.split("|")[7]) > 0.0 for line in trained)
    assert store_folder(EnsembleData(task="t2m", members=5), Path("x")) == Path("x/t2m-5")
