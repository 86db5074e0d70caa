"""Recipes of the weather experiment (paper section 3.2 and its appendix). Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from smoe.rules import Frozen, Probing, RoutingClassification, Rule
from smoe.training.plan import TrainingPlan
from smoe_paper.experiments.optimizers import Adam, SgdMomentum
from smoe_paper.experiments.recipe import Recipe
from smoe_paper.experiments.year_ranges import check_year_ranges
from smoe_paper.weather.model_options import (
    AddedSpatialMoEModel,
    LowRankLocalResNetModel,
    ResNetModel,
    SpatialMoEResNetModel,
    WeatherModel,
    WeatherViTModel,
)


@dataclass(frozen=True)
class WeatherData:
    """A store written by `smoe data prepare weather`, and the inputs and targets.

    Attributes:
        store: Folder of the store.
        train_years: First and last year of training.
        validation_years: First and last year for the schedule and the choice of the best weights.
        test_years: First and last year of the test scores.
        targets: Channels to forecast.
        inputs: Channels of the input; None for all of the store.
        constants: Constants of the input; None for all of the store.
        context_hours: Hours before the start of the input's times, in descending order.
        lead_hours: Lead of the forecasts, and of validation and test with a continuous lead.
        continuous_lead_hours: Smallest and largest lead, drawn at random for each sample and epoch and given to the
            network as a further channel; None trains on `lead_hours` alone.
        start_every_hours: Hours between the starts in training and validation; None for every step of the store.
        test_every_hours: Hours between the starts in the test.
        skip_hours: Hours left out at the beginning of the training years.
    """

    store: Path | None = None
    train_years: tuple[int, int] = (1979, 2015)
    validation_years: tuple[int, int] = (2016, 2016)
    test_years: tuple[int, int] = (2017, 2018)
    targets: tuple[str, ...] = ("z_500", "t_850", "t2m")
    inputs: tuple[str, ...] | None = None
    constants: tuple[str, ...] | None = None
    context_hours: tuple[int, ...] = (12, 6, 0)
    lead_hours: int = 72
    continuous_lead_hours: tuple[int, int] | None = None
    start_every_hours: int | None = None
    test_every_hours: int = 6
    # As Rasp and Thuerey, because radiation and precipitation have gaps there.
    skip_hours: int = 24

    def __post_init__(self) -> None:
        check_year_ranges(self)


# The paper's appendix: divide the learning rate by 10 when the validation loss has not improved for two epochs.
SMOE_TRAINING = TrainingPlan(
    batch_size=64,
    evaluation_batch_size=64,
    max_epochs=100,
    monitor="loss",
    monitor_mode="min",
    plateau_patience=2,
    plateau_factor=0.1,
    min_lr=1e-6,
    early_stop_patience=5,
    stop_at=None,
)
# Rasp and Thuerey's configurations. Keras lowers the learning rate in the second epoch without improvement, where
# torch would need a patience of 1.
RASP_TRAINING = replace(
    SMOE_TRAINING, batch_size=32, plateau_patience=1, plateau_factor=0.2, min_lr=1e-5, min_delta=1e-4
)
# Keras's L2 penalty of both.
WEATHER_OPTIMIZER = Adam(l2=1e-5)
RASP_OPTIMIZER = replace(WEATHER_OPTIMIZER, lr=5e-5)


@dataclass(frozen=True)
class WeatherRecipe(Recipe):
    """Medium-range weather on the globe."""

    experiment: ClassVar[str] = "weather"

    data: WeatherData = field(default_factory=WeatherData)
    model: WeatherModel = field(default_factory=ResNetModel)
    # The paper's text; the setting of the heat experiment (0.3, 0.0) would zero most of the error of every layer.
    rule: Rule = field(default_factory=RoutingClassification.paper)
    optimizer: Adam | SgdMomentum = WEATHER_OPTIMIZER
    training: TrainingPlan = SMOE_TRAINING


_ROWS = {
    "rt": WeatherRecipe(model=ResNetModel()),
    "rt-wide": WeatherRecipe(model=ResNetModel(filters=256)),
    "lrlcn": WeatherRecipe(model=LowRankLocalResNetModel()),
    "vit": WeatherRecipe(model=WeatherViTModel()),
    "smoe-first": WeatherRecipe(model=AddedSpatialMoEModel(position="first")),
    # The paper says `after the final convolution` and 256 experts of which 128 are selected; both are true only with
    # 128 filters, before the output convolution.
    "smoe-last": WeatherRecipe(model=AddedSpatialMoEModel(position="last")),
    "smoe": WeatherRecipe(model=SpatialMoEResNetModel()),
    "smoe-prior": WeatherRecipe(model=SpatialMoEResNetModel(prior="land_sea")),
    "smoe-random": WeatherRecipe(model=SpatialMoEResNetModel(gate="random"), rule=Frozen()),
    # Not in the paper: on the simulated atmosphere the best rule for the gates of a deep network (docs/probing.md).
    "smoe-probe": WeatherRecipe(model=SpatialMoEResNetModel(), rule=Probing(confidence=2.0)),
}

# Each row of the paper's table and an additional one, trained as in the paper's appendix and as in Rasp and Thuerey's
# configurations.
WEATHER_RECIPES = {
    **{f"weather/{name}": recipe for name, recipe in _ROWS.items()},
    **{
        f"weather/{name}-rasp": replace(recipe, optimizer=RASP_OPTIMIZER, training=RASP_TRAINING)
        for name, recipe in _ROWS.items()
    },
}
