"""Makes the data and the training task of a weather recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch

from smoe.training.metrics import MeanLoss, Metric
from smoe.training.task import Task
from smoe_paper.experiments.assemble import assemble_task
from smoe_paper.experiments.dry_task import DryTask
from smoe_paper.experiments.experiment import SPLITS, Notify
from smoe_paper.experiments.gated_layers import Learning
from smoe_paper.losses import LatitudeWeightedMSE
from smoe_paper.metrics import LatitudeWeightedMAE, LatitudeWeightedRMSE
from smoe_paper.weather.build_model import build_model
from smoe_paper.weather.data.samples import WeatherSamples
from smoe_paper.weather.data.store import WeatherStore
from smoe_paper.weather.recipes import WeatherRecipe
from smoe_paper.weather.setting import Setting, open_store, setting_of, usual_setting


def build_task(recipe: WeatherRecipe, splits: tuple[str, ...] = SPLITS, notify: Notify = print) -> Task:
    """Makes everything that the training loop needs.

    Args:
        recipe: Recipe to train.
        splits: Data to open.
        notify: Receives messages about missing years.
    """
    store = open_store(recipe.data)
    samples = {split: make_split(recipe, store, split, notify) for split in splits}
    return make_task(recipe, setting_of(recipe.data, store), samples, make_scores(recipe.data.targets, store))


def make_task(
    recipe: WeatherRecipe,
    setting: Setting,
    samples: Mapping[str, WeatherSamples] | None = None,
    scores: Sequence[Metric] = (),
) -> Task:
    """Returns the task of a recipe in a setting.

    Args:
        recipe: Recipe to train.
        setting: Properties of the data on which the network depends.
        samples: Samples of each split.
        scores: Further metrics; the loss is always one.
    """
    torch.manual_seed(recipe.seed)
    model = build_model(recipe.model, Learning.of(recipe), setting.shape, setting.land)
    loss = LatitudeWeightedMSE(setting.latitude)
    regions = None if setting.land is None else (setting.land > 0.5).int()
    metrics = [MeanLoss(loss), *scores]
    return assemble_task(recipe, model, loss, metrics, samples, WeatherSamples.collate, regions=regions)


def make_split(recipe: WeatherRecipe, store: WeatherStore, split: str, notify: Notify = print) -> WeatherSamples:
    """Returns the samples of a split. Outside training a continuous lead is fixed at `lead_hours`."""
    data, is_training = recipe.data, split == "train"
    years = {"train": data.train_years, "validation": data.validation_years, "test": data.test_years}[split]
    is_continuous = data.continuous_lead_hours is not None
    samples = WeatherSamples(
        store,
        years,
        targets=data.targets,
        inputs=data.inputs,
        constants=data.constants,
        context_hours=data.context_hours,
        lead_hours=data.lead_hours if data.continuous_lead_hours is None else data.continuous_lead_hours,
        start_every_hours=data.test_every_hours if split == "test" else data.start_every_hours,
        skip_hours=data.skip_hours if is_training else 0,
        seed=recipe.seed,
        fixed_lead=data.lead_hours if is_continuous and not is_training else None,
    )
    missing = samples.missing_years
    if missing:
        notify(
            f"{split}: of the years {years[0]} to {years[1]}, {len(missing)} are not in {store.path}: "
            f"{', '.join(map(str, missing))}"
        )
    return samples


def make_scores(targets: tuple[str, ...], store: WeatherStore) -> list[Metric]:
    """Returns the errors of the targets in physical units."""
    scales = [float(store.std[index]) for index in store.channel_indices(targets)]
    # The network forecasts the logarithm of precipitation.
    inverses = {name: partial(store.to_physical, name) for name in targets if name == "tp"}
    return [
        score(targets, store.grid.latitude, scales, inverses=inverses)
        for score in (LatitudeWeightedRMSE, LatitudeWeightedMAE)
    ]


def build_dry_task(recipe: WeatherRecipe) -> DryTask:
    """Makes the task without reading fields; without a store, for the paper's grid."""
    data = recipe.data
    setting = usual_setting(data) if data.store is None else setting_of(data, open_store(data))
    shape = setting.shape
    return DryTask(make_task(recipe, setting), (shape.in_channels, *shape.grid), (shape.out_channels, *shape.grid))
