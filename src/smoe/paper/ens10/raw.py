"""The scores of the ensemble as it is, which every correction has to beat."""

from __future__ import annotations

import torch

from smoe.metrics import EnsembleCRPS, EnsembleSpreadSkill, Metric, RankHistogram
from smoe.paper.ens10.build import make_scores
from smoe.paper.ens10.data.samples import EnsembleSamples
from smoe.paper.ens10.data.store import EnsembleStore
from smoe.paper.ens10.scored_samples import ScoredSamples
from smoe.paper.ens10.setting import setting_of


def score_raw_ensemble(store: EnsembleStore, years: tuple[int, int], batch_size: int = 8) -> dict[str, float]:
    """Scores an ensemble twice: as the normal distribution of its mean and spread, and by its members.

    The first are named as those of the models (`crps`, `eecrps`, ...), which start from this distribution; the second
    (`ensemble_crps`, `fair_ensemble_crps`, `rank_0`, ...) are left out if the store has no members.

    Args:
        store: where the ensemble is.
        years: first and last year, by the dates that the forecasts are for.
        batch_size: forecasts that are in memory at once.
    """
    setting = setting_of(store)
    has_members = store.members is not None
    plain = EnsembleSamples(store, years, inputs="members" if has_members else "statistics")
    samples = plain if store.efi is None else ScoredSamples(plain)
    of_distribution = make_scores(setting)
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
    metrics = [*of_distribution, *of_members]
    totals = [torch.zeros(len(metric.names), metric.num_totals, dtype=torch.float64) for metric in metrics]
    for first in range(0, len(samples), batch_size):
        members, target = samples.__getitems__(range(first, min(first + batch_size, len(samples))))
        # Of zeros the head makes the ensemble's own mean and spread.
        unchanged = torch.zeros(len(target), 2, *target.shape[2:])
        for number, (total, metric) in enumerate(zip(totals, metrics, strict=True)):
            total += metric.totals(unchanged if number < len(of_distribution) else members, target)
    values: dict[str, float] = {}
    for total, metric in zip(totals, metrics, strict=True):
        values |= metric.values(total)
    return values
