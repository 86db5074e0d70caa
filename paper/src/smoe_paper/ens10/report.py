"""Prints scores of corrected ensembles beside those of the raw ensemble and those of the paper."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from smoe_paper.ens10.data.store import EnsembleStore
from smoe_paper.ens10.published import MEMBERS, paper_results
from smoe_paper.ens10.raw import score_raw_ensemble
from smoe_paper.ens10.recipes import EnsembleRecipe
from smoe_paper.ens10.setting import open_store
from smoe_paper.experiments.open_run import OpenRun
from smoe_paper.weather.report import print_scores

_MODELS = {"ens10/emos": "EMOS", "ens10/unet": "U-Net", "ens10/smoe": "SMoE"}
_LEGEND = (
    "crps, eecrps: of the normal distributions, as in ENS-10, without latitude weights (`_weighted`: with); "
    "spread_skill: spread over error, 1 is right; efi_dates: forecasts with an extreme forecast index, which eecrps is "
    "the mean over; ensemble_, fair_: of the members themselves; rank_: share of the truths with that rank among them. "
    "The paper's are of ENS-10, 2016-2017: they can be compared with a run on these data only."
)


def print_run_scores(run: OpenRun, split: str) -> None:
    """Scores a run and prints its table."""
    assert isinstance(run.recipe, EnsembleRecipe)
    data = run.recipe.data
    years = {"train": data.train_years, "validation": data.validation_years, "test": data.test_years}[split]
    store = open_store(data)
    title = f"{run.name}, {split} split ({years[0]}-{years[1]}): {store.task} from {store.num_members} members"
    scores = run.evaluate(split)
    print_ensemble_scores(title, store, score_raw_ensemble(store, years), run.name, scores)


def print_store_scores(path: Path, years: tuple[int, int] | None) -> None:
    """Scores the ensemble of a store and prints its table.

    Args:
        path: Folder of the store.
        years: First and last year; None for all years after training.
    """
    store = EnsembleStore.open(path)
    after = store.train_years[1] + 1
    years = years or (after, max(after, store.years()[-1]))
    title = f"{path.name}, {years[0]}-{years[1]}: {store.task} from {store.num_members} members"
    print_ensemble_scores(title, store, score_raw_ensemble(store, years))


def print_ensemble_scores(
    title: str,
    store: EnsembleStore,
    raw: Mapping[str, float],
    name: str | None = None,
    scores: Mapping[str, float] | None = None,
    console: Console | None = None,
) -> None:
    """Prints the scores of a correction, if there is one, of the raw ensemble, and of the paper.

    Args:
        title: Title of the table.
        store: Store of the ensemble.
        raw: Scores of the raw ensemble.
        name: Name of the correction.
        scores: Scores of the correction.
        console: Console to print to; None for standard output.
    """
    columns: dict[str, Mapping[str, float]] = {} if name is None or scores is None else {name: scores}
    columns["raw ensemble"] = raw
    if store.num_members in MEMBERS:
        for recipe, label in _MODELS.items():
            results = paper_results(recipe, store.task, store.num_members)
            columns[f"paper: {label}"] = {result.metric: result.mean for result in results}
    (first, first_scores), *others = columns.items()
    print_scores(title, first, first_scores, dict(others), console, legend=_LEGEND)
