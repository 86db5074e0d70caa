"""Scores of corrected ensembles beside the raw one's, and beside the paper's."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console

from smoe.cli.weather_report import print_scores
from smoe.paper.ens10.data.store import EnsembleStore
from smoe.paper.ens10.published import MEMBERS, paper_results

_MODELS = {"ens10/emos": "EMOS", "ens10/unet": "U-Net", "ens10/smoe": "SMoE"}
_LEGEND = (
    "crps, eecrps: of the normal distributions, as in ENS-10, without latitude weights (`_weighted`: with); "
    "spread_skill: spread over error, 1 is right; efi_dates: forecasts with an extreme forecast index, which eecrps is "
    "the mean over; ensemble_, fair_: of the members themselves; rank_: share of the truths with that rank among them. "
    "The paper's are of ENS-10, 2016-2017: they can be compared with a run on these data only."
)


def print_ensemble_scores(
    title: str,
    store: EnsembleStore,
    raw: Mapping[str, float],
    name: str | None = None,
    scores: Mapping[str, float] | None = None,
    console: Console | None = None,
) -> None:
    """The scores of a correction, if there is one, those of the ensemble as it is, and what the paper prints.

    Args:
        title: above the table.
        store: of the ensemble.
        raw: scores of the ensemble as it is.
        name: of the correction.
        scores: of the correction.
        console: to print to; None for standard output.
    """
    columns: dict[str, Mapping[str, float]] = {} if name is None or scores is None else {name: scores}
    columns["raw ensemble"] = raw
    if store.num_members in MEMBERS:
        for recipe, label in _MODELS.items():
            results = paper_results(recipe, store.task, store.num_members)
            columns[f"paper: {label}"] = {result.metric: result.mean for result in results}
    (first, first_scores), *others = columns.items()
    print_scores(title, first, first_scores, dict(others), console, legend=_LEGEND)
