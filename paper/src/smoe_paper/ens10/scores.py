"""Scores of ensembles, raw and corrected."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import BatchSampler

from smoe.reports.run_report import Places
from smoe.training.task import MetricSums, load_batches
from smoe_paper.ens10.model import make_scores, open_store
from smoe_paper.ens10.recipes import (
    ENSEMBLE_RECIPES,
    EnsembleData,
    EnsembleRecipe,
    paper_results,
    reference_name,
    store_folder,
)
from smoe_paper.ens10.source import TASKS
from smoe_paper.ens10.store import EnsembleSamples, EnsembleStore
from smoe_paper.experiments.experiment import Notify, ReportParts
from smoe_paper.experiments.stored_runs import RunStore
from smoe_paper.experiments.tables import ResultTable, Scale
from smoe_paper.experiments.task import OpenRun
from smoe_paper.losses import gaussian_head

RAW = "raw ensemble"


def score_raw_ensemble(store: EnsembleStore, years: tuple[int, int], batch_size: int = 8) -> dict[str, float]:
    """Scores the normal distribution of an ensemble's mean and spread, which the models correct."""
    samples, sums = EnsembleSamples(store, years), MetricSums(make_scores(has_efi=store.efi is not None))
    batches = BatchSampler(range(len(samples)), batch_size, drop_last=False)
    for _, target in load_batches(samples, batches, EnsembleSamples.collate, "cpu"):
        # From zeros the head makes the ensemble's own mean and spread.
        sums.add(torch.zeros(len(target), 2, *target.shape[2:]), target)
    return sums.values()


def data_checksum(data: EnsembleData) -> str:
    return open_store(data).checksum


def physical_predictions(run: OpenRun, split: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields the corrected mean and the truth, `(B, 1, H, W)` each, in physical units."""
    for output, target in run.outputs(split):
        yield gaussian_head(output, target[:, 1], target[:, 2])[0][:, None], target[:, :1]


def store_references(
    tables: Iterable[ResultTable], scale: Scale, folder: Path, store: RunStore, notify: Callable[[str], None]
) -> None:
    """Scores the ensemble of each store in the rows of the tables, on the rows' test years, unless it is stored.

    A missing store is reported and skipped; its rows cannot be trained.
    """
    wanted: dict[tuple[str, int], EnsembleData] = {}
    for row in (row for table in tables for row in table.rows):
        recipe = scale.recipe(row, seed=0)
        assert isinstance(recipe, EnsembleRecipe)
        assert recipe.data.task is not None
        assert recipe.data.members is not None
        wanted[recipe.data.task, recipe.data.members] = recipe.data
    for (task, members), data in wanted.items():
        path, name = store_folder(data, folder), reference_name(task, members, scale.name)
        if store.read_reference(name) is not None:
            continue
        if not path.exists():
            command = f"smoe data prepare ens10 --output {path} --task {task} --members {members}"
            notify(f"there is no store {path}: {command} makes it")
            continue
        notify(f"scoring the {RAW} of {path.name}")
        scores = score_raw_ensemble(open_store(replace(data, store=path)), data.test_years)
        store.write_reference(name, {"label": f"{RAW}, {members} members, {scale.name}", "test": scores})


def report_parts(run: OpenRun, split: str | None, notify: Notify) -> ReportParts:
    data, store = run.recipe.data, open_store(run.recipe.data)
    baselines: dict[str, dict[str, float]] = {}
    if split is not None:
        notify(f"{run.name}: scoring the {RAW}")
        baselines = {RAW: score_raw_ensemble(store, getattr(data, f"{split}_years"))}
    return ReportParts(
        places=Places.globe(store.grid.latitude, store.grid.longitude),
        targets=((store.task, TASKS[store.task].target_variable.physics.units),),
        data={"store": store.path.name, "checksum of the store": store.checksum},
        baselines=baselines,
        published={name: paper_results(name, store.task, store.num_members) for name in ENSEMBLE_RECIPES},
        remarks=(
            f"{store.task} from {store.num_members} members. crps, eecrps: of the normal distributions, as in ENS-10, "
            "without latitude weights; eecrps: of the forecasts with an extreme forecast index. The paper's are of "
            "ENS-10, 2016-2017: they can be compared with a run on these data only.",
        ),
    )
