"""Scores of the raw ensemble, the reference for every correction."""

from __future__ import annotations

import torch

from smoe.training.metrics import Metric, MetricSums
from smoe.training.task import OrderedBatches, load_batches
from smoe_paper.ens10.build import make_scores
from smoe_paper.ens10.data.samples import EnsembleSamples
from smoe_paper.ens10.data.store import EnsembleStore
from smoe_paper.ens10.scored_samples import ScoredSamples
from smoe_paper.ens10.setting import setting_of
from smoe_paper.probabilistic_metrics import EnsembleCRPS, EnsembleSpreadSkill, RankHistogram


def score_raw_ensemble(store: EnsembleStore, years: tuple[int, int], batch_size: int = 8) -> dict[str, float]:
    """Scores an ensemble twice: as the normal distribution of its mean and spread, and by its members.

    The scores of the distribution have the names of the models' scores (`crps`, `eecrps`, ...), which correct it; those
    of the members (`ensemble_crps`, `fair_ensemble_crps`, `rank_0`, ...) are left out if the store has no members.

    Args:
        store: Store of the ensemble.
        years: First and last year, by the dates for which the forecasts are valid.
        batch_size: Number of forecasts in memory at once.
    """
    setting = setting_of(store)
    has_members = store.members is not None
    plain = EnsembleSamples(store, years, inputs="members" if has_members else "statistics")
    samples = plain if store.efi is None else ScoredSamples(plain)
    of_members: list[Metric] = []
    if has_members:
        of_members = [
            EnsembleCRPS(),
            EnsembleCRPS(fair=True),
            EnsembleCRPS(latitude=setting.latitude),
            EnsembleCRPS(fair=True, latitude=setting.latitude),
            EnsembleSpreadSkill(),
            RankHistogram(store.num_members),
        ]
    of_normal, of_ensemble = MetricSums(make_scores(setting)), MetricSums(of_members)
    batches = OrderedBatches(len(samples), batch_size)
    for members, target in load_batches(samples, batches, EnsembleSamples.collate, "cpu"):
        # From zeros the head makes the ensemble's own mean and spread.
        of_normal.add(torch.zeros(len(target), 2, *target.shape[2:]), target)
        of_ensemble.add(members, target)
    return of_normal.values() | of_ensemble.values()
