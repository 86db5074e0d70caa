"""Makes the data and the training task of a recipe that corrects ensembles."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.utils.data import Dataset

from smoe.training.metrics import Metric
from smoe.training.task import Task
from smoe_paper.ens10.build_model import build_model
from smoe_paper.ens10.data.samples import EnsembleSamples
from smoe_paper.ens10.data.store import EnsembleStore
from smoe_paper.ens10.model_options import EmosModel
from smoe_paper.ens10.recipes import EnsembleRecipe
from smoe_paper.ens10.scored_samples import ScoredSamples
from smoe_paper.ens10.setting import EnsembleSetting, open_store, setting_of, usual_setting
from smoe_paper.experiments.assemble import assemble_task
from smoe_paper.experiments.dry_task import DryTask
from smoe_paper.experiments.experiment import SPLITS, Notify
from smoe_paper.experiments.gated_layers import Learning
from smoe_paper.losses import GaussianCRPSLoss
from smoe_paper.probabilistic_metrics import EECRPS, EfiDates, GaussianCRPS, GaussianSpreadSkill

Samples = EnsembleSamples | ScoredSamples


def build_task(recipe: EnsembleRecipe, splits: tuple[str, ...] = SPLITS, notify: Notify = print) -> Task:
    """Makes everything that the training loop needs.

    Args:
        recipe: Recipe to train.
        splits: Data to open.
        notify: Receives messages about missing years.
    """
    store = open_store(recipe.data)
    samples = {split: make_split(recipe, store, split, notify) for split in splits}
    return make_task(recipe, setting_of(store), samples)


def make_task(
    recipe: EnsembleRecipe,
    setting: EnsembleSetting,
    samples: Mapping[str, Dataset[tuple[torch.Tensor, torch.Tensor]]] | None = None,
) -> Task:
    """Returns the task of a recipe in a setting.

    Args:
        recipe: Recipe to train.
        setting: Properties of the data on which the model depends.
        samples: Samples of each split.
    """
    torch.manual_seed(recipe.seed)
    model = build_model(recipe.model, Learning.of(recipe), setting.shape)
    loss = GaussianCRPSLoss(setting.latitude if recipe.weighs_latitudes else None)
    return assemble_task(recipe, model, loss, make_scores(setting), samples, EnsembleSamples.collate)


def make_split(recipe: EnsembleRecipe, store: EnsembleStore, split: str, notify: Notify = print) -> Samples:
    """Returns the samples of a split: members for EMOS, otherwise statistics; with the EFI if the store has one."""
    data = recipe.data
    years = {"train": data.train_years, "validation": data.validation_years, "test": data.test_years}[split]
    inputs = "members" if isinstance(recipe.model, EmosModel) else "statistics"
    samples = EnsembleSamples(store, years, inputs=inputs)
    missing = [year for year in range(years[0], years[1] + 1) if year not in store.years()]
    if missing:
        notify(
            f"{split}: of the years {years[0]} to {years[1]}, {len(missing)} are not in {store.path}: "
            f"{', '.join(map(str, missing))}"
        )
    if store.efi is None:
        return samples
    scored = ScoredSamples(samples)
    if split != "train" and scored.num_unknown:
        notify(
            f"{split}: {scored.num_unknown} of {len(scored)} forecasts have no extreme forecast index, and the EECRPS "
            "leaves them out"
        )
    return scored


def make_scores(setting: EnsembleSetting) -> list[Metric]:
    """Returns CRPS with and without area weights, spread over skill, and EECRPS if the EFI is known."""
    scores: list[Metric] = [GaussianCRPS(), GaussianCRPS(setting.latitude), GaussianSpreadSkill()]
    return [*scores, EECRPS(), EECRPS(setting.latitude), EfiDates()] if setting.has_efi else scores


def build_dry_task(recipe: EnsembleRecipe) -> DryTask:
    """Makes the task without reading fields; without a store, for ENS-10's grid."""
    setting = usual_setting() if recipe.data.store is None else setting_of(open_store(recipe.data))
    shape = setting.shape
    num_channels = shape.num_members if isinstance(recipe.model, EmosModel) else shape.in_channels
    # Truth, mean and spread of the ensemble, and the EFI.
    num_targets = 3 + setting.has_efi
    return DryTask(make_task(recipe, setting), (num_channels, *shape.grid), (num_targets, *shape.grid))
