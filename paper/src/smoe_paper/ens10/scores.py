"""Scores of ensembles, raw and corrected."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from smoe.training.task import Metric, MetricSums, OrderedBatches, load_batches
from smoe_paper.ens10.model import make_scores, open_store, setting_of
from smoe_paper.ens10.recipes import MEMBERS, EnsembleData, EnsembleRecipe, paper_results
from smoe_paper.ens10.store import EnsembleSamples, EnsembleStore
from smoe_paper.ens10.tables import MAPS, reference_name, store_folder
from smoe_paper.experiments.stored_runs import RunStore
from smoe_paper.experiments.tables import ResultTable, Scale
from smoe_paper.experiments.task import OpenRun
from smoe_paper.losses import corrected_crps, gaussian_correction, gaussian_head
from smoe_paper.probabilistic_metrics import EnsembleCRPS, EnsembleSpreadSkill, PitHistogram, RankHistogram
from smoe_paper.weather.scores import print_scores


def score_raw_ensemble(store: EnsembleStore, years: tuple[int, int], batch_size: int = 8) -> dict[str, float]:
    """Scores an ensemble twice: as the normal distribution of its mean and spread, and by its members.

    The scores of the distribution have the names of the models' scores (`crps`, `eecrps`, ...), which correct it; those
    of the members (`ensemble_crps`, `fair_ensemble_crps`, `rank_0`, ...) are left out if the store has no members.
    """
    setting = setting_of(store)
    has_members = store.members is not None
    samples = EnsembleSamples(store, years, inputs="members" if has_members else "statistics")
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


class MeanErrorMap:
    """The mean error of the ensemble mean at each point, over the training years; the spread stays."""

    def __init__(self, store: EnsembleStore, years: tuple[int, int]) -> None:
        total, count = 0.0, 0
        for target in _targets(store, years):
            total, count = total + (target[0] - target[1]), count + 1
        self._shift = total / count

    def __call__(self, target: Tensor) -> Tensor:
        """Returns the output whose head is the correction of targets `(B, 3 or more, H, W)`."""
        return _as_output(self._shift - 0.0 * target[:, 1], target[:, 2], target[:, 2])


class PointEmos:
    """Least squares of the truth on the ensemble mean at each point; the spread is that of the residuals."""

    def __init__(self, store: EnsembleStore, years: tuple[int, int]) -> None:
        pairs = torch.stack([target[:2] for target in _targets(store, years)], dim=1)
        self._centre = pairs.mean(dim=1)
        truth, mean = pairs - self._centre[:, None]
        self._slope = (truth * mean).sum(dim=0) / mean.square().sum(dim=0).clamp_min(1e-12)
        residual = truth - self._slope * mean
        self._std = (residual.square().sum(dim=0) / max(1, len(truth) - 2)).sqrt()

    def __call__(self, target: Tensor) -> Tensor:
        mean = target[:, 1].double()
        corrected = self._centre[0] + self._slope * (mean - self._centre[1])
        return _as_output(corrected - mean, self._std.expand_as(mean), target[:, 2])


def _targets(store: EnsembleStore, years: tuple[int, int]) -> Iterator[Tensor]:
    samples = EnsembleSamples(store, years)
    return (samples[index][1].double() for index in range(len(samples)))


def _as_output(shift: Tensor, std: Tensor, spread: Tensor) -> Tensor:
    # Inverts `gaussian_correction`; a point without spread cannot be moved.
    spread = spread.double().clamp_min(1e-12)
    return torch.stack([shift / spread, (std.double().clamp_min(1e-12) / spread).log()], dim=1).float()


def score_map(
    store: EnsembleStore, kind: str, train_years: tuple[int, int], years: tuple[int, int]
) -> dict[str, float]:
    """Scores a correction that is fitted to the training years in closed form, as the models' are."""
    correct = {"mean-errors": MeanErrorMap, "point-emos": PointEmos}[kind](store, train_years)
    sums = MetricSums(make_scores(setting_of(store)))
    for target in _targets(store, years):
        sums.add(correct(target[None]), target[None].float())
    return sums.values()


NUM_PARTS = 20
"""Number of equally probable parts of a distribution in the histogram and the reliability diagram."""
_NUM_SPREADS = 10
_SOME_DATES = 20


@dataclass(frozen=True)
class Verification:
    """Quality of the normal distributions of a split."""

    crps: np.ndarray
    parts: np.ndarray
    spread: np.ndarray
    error: np.ndarray


class _Sums:
    def __init__(self, shape: tuple[int, int], edges: Tensor) -> None:
        self._crps, self._count = torch.zeros(shape, dtype=torch.float64), 0
        self._parts = MetricSums([PitHistogram(NUM_PARTS)])
        self._edges = edges
        self._classes = torch.zeros(3, len(edges) + 1, dtype=torch.float64)

    def add(self, output: Tensor, target: Tensor) -> None:
        shift, std = gaussian_correction(output, target[:, 2])
        error = target[:, 0] - target[:, 1] - shift
        self._crps += corrected_crps(output, target).sum(dim=0, dtype=torch.float64)
        self._count += len(target)
        self._parts.add(output, target)
        class_of = torch.bucketize(target[:, 2].contiguous(), self._edges).flatten()
        for row, values in enumerate((std.square(), error.square(), torch.ones_like(error))):
            self._classes[row].index_add_(0, class_of, values.double().flatten())

    def result(self) -> Verification:
        variance, squared_error, count = self._classes
        filled = count > 0
        spread, error = ((sums[filled] / count[filled]).sqrt().numpy() for sums in (variance, squared_error))
        parts = np.array(list(self._parts.values().values()))
        return Verification((self._crps / self._count).numpy(), parts, spread, error)


def verify(run: OpenRun, split: str) -> tuple[Verification, Verification]:
    """Verifies the raw ensemble and the run's correction in one pass over a split."""
    store = store_of(run, split)
    edges = torch.from_numpy(_spread_edges(store))
    raw, corrected = _Sums(store.grid.shape, edges), _Sums(store.grid.shape, edges)
    for output, target in run.predict(split):
        output, target = output.float().cpu(), target.cpu()
        corrected.add(output, target)
        raw.add(torch.zeros_like(output), target)
    return raw.result(), corrected.result()


def physical_predictions(run: OpenRun, split: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields mean and standard deviation `(B, 2, H, W)` and the truth `(B, H, W)`, in physical units."""
    for output, target in run.predict(split):
        yield torch.stack(gaussian_head(output, target[:, 1], target[:, 2]), dim=1), target[:, 0]


def store_of(run: OpenRun, split: str) -> EnsembleStore:
    samples = run.task.splits[split]
    assert isinstance(samples, EnsembleSamples)
    return samples.store


def _spread_edges(store: EnsembleStore) -> np.ndarray:
    """Returns borders between classes of the ensemble's spread with equal numbers of pixels, from some of the dates."""
    some = np.unique(np.linspace(0, len(store.dates) - 1, _SOME_DATES).round().astype(int))
    values = np.concatenate([np.asarray(store.target_std[row]).ravel() for row in some])
    return np.quantile(values, np.linspace(0, 1, _NUM_SPREADS + 1)[1:-1]).astype(np.float32)


def store_references(
    tables: Iterable[ResultTable], scale: Scale, folder: Path, store: RunStore, notify: Callable[[str], None]
) -> None:
    """Scores the ensemble of each store in the rows of the tables, on the rows' test years, unless it is stored.

    A missing store is reported and skipped; its rows cannot be trained.
    """
    wanted: dict[tuple[str, int], EnsembleData] = {}
    for table in tables:
        for row in table.rows:
            recipe = scale.recipe(row, seed=0)
            assert isinstance(recipe, EnsembleRecipe)
            assert recipe.data.task is not None
            assert recipe.data.members is not None
            wanted[recipe.data.task, recipe.data.members] = recipe.data
    for (task, members), data in wanted.items():
        path = store_folder(data, folder)
        names = {kind: reference_name(task, members, scale.name, kind) for kind in MAPS}
        missing = [kind for kind, name in names.items() if store.read_reference(name) is None]
        if missing and not path.exists():
            command = f"smoe data prepare ens10 --output {path} --task {data.task} --members {data.members}"
            notify(f"there is no store {path}: {command} makes it")
            continue
        for kind in missing:
            notify(f"scoring the {MAPS[kind]} of {path.name}")
            opened = open_store(replace(data, store=path))
            if kind == "raw":
                scores = score_raw_ensemble(opened, data.test_years)
            else:
                scores = score_map(opened, kind, data.train_years, data.test_years)
            label = f"{MAPS[kind]}, {members} members, {scale.name}"
            store.write_reference(names[kind], {"label": label, "test": scores})


_MODELS = {"ens10/emos": "EMOS", "ens10/unet": "U-Net", "ens10/smoe": "SMoE"}
_LEGEND = (
    "crps, eecrps: of the normal distributions, as in ENS-10, without latitude weights (`_weighted`: with); "
    "spread_skill: spread over error, 1 is right; efi_dates: forecasts with an extreme forecast index, which eecrps is "
    "the mean over; ensemble_, fair_: of the members themselves; rank_: share of the truths with that rank among them. "
    "The paper's are of ENS-10, 2016-2017: they can be compared with a run on these data only."
)


def print_run_scores(run: OpenRun, split: str) -> None:
    assert isinstance(run.recipe, EnsembleRecipe)
    data = run.recipe.data
    years = {"train": data.train_years, "validation": data.validation_years, "test": data.test_years}[split]
    store = open_store(data)
    title = f"{run.name}, {split} split ({years[0]}-{years[1]}): {store.task} from {store.num_members} members"
    scores = run.evaluate(split)
    print_ensemble_scores(title, store, score_raw_ensemble(store, years), run.name, scores)


def print_ensemble_scores(
    title: str,
    store: EnsembleStore,
    raw: Mapping[str, float],
    name: str | None = None,
    scores: Mapping[str, float] | None = None,
    console: Console | None = None,
) -> None:
    """Prints the scores of a correction, if there is one, of the raw ensemble, and of the paper."""
    columns: dict[str, Mapping[str, float]] = {} if name is None or scores is None else {name: scores}
    columns["raw ensemble"] = raw
    if store.num_members in MEMBERS:
        for recipe, label in _MODELS.items():
            results = paper_results(recipe, store.task, store.num_members)
            columns[f"paper: {label}"] = {result.metric: result.mean for result in results}
    (first, first_scores), *others = columns.items()
    print_scores(title, first, first_scores, dict(others), console, legend=_LEGEND)
