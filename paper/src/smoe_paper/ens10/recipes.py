"""Recipes of the post-processing of ensembles (paper section 3.3 and its appendix). Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Literal

from smoe.rules import RoutingClassification, Rule
from smoe.training.plan import TrainingPlan
from smoe_paper.ens10.model_options import EmosModel, EnsembleModel, SpatialMoEUNetModel, UNetModel
from smoe_paper.experiments.optimizers import Adam, SgdMomentum
from smoe_paper.experiments.recipe import Recipe
from smoe_paper.experiments.year_ranges import check_year_ranges


@dataclass(frozen=True)
class EnsembleData:
    """A store of one variable and number of members, written by `smoe data prepare ens10`.

    ENS-10 trains on 1998-2015 and takes the weights of the epoch that is best in the test years. Here the test years
    do not influence the training: the last training year is held back instead. `--data.train-years 1998 2015
    --data.validation-years 2016 2017` is ENS-10's way.

    Attributes:
        store: Folder of the store.
        train_years: First and last year of training, by the dates for which the forecasts are valid.
        validation_years: First and last year for the choice of the best weights.
        test_years: First and last year of the test scores.
        task: Required task of the store, `z500`, `t850` or `t2m`; None accepts any.
        members: Required number of members of the store; None accepts any.
    """

    store: Path | None = None
    train_years: tuple[int, int] = (1998, 2014)
    validation_years: tuple[int, int] = (2015, 2015)
    test_years: tuple[int, int] = (2016, 2017)
    task: Literal["z500", "t850", "t2m"] | None = None
    members: Literal[5, 10] | None = None

    def __post_init__(self) -> None:
        check_year_ranges(self)


# Ten epochs at one learning rate: the patience never ends.
ENSEMBLE_TRAINING = TrainingPlan(
    batch_size=8,
    evaluation_batch_size=8,
    max_epochs=10,
    monitor="crps",
    monitor_mode="min",
    plateau_patience=10,
    early_stop_patience=10,
    stop_at=None,
)
ENSEMBLE_OPTIMIZER = Adam(lr=1e-5)
# Quantile and damping of the paper's text, as for the weather. A gate of 33 million scores has gradients of about 1e-8,
# Adam's epsilon, which would halve its steps; the weight of the RC loss lifts them above it. It changes nothing else,
# because Adam's steps do not depend on a factor and the gates have no other gradient.
ENSEMBLE_RULE = replace(RoutingClassification.paper(), weight=1e4)


@dataclass(frozen=True)
class EnsembleRecipe(Recipe):
    """Post-processing of ensemble forecasts.

    The tolerances of the rule are in units of the loss, those of the data for each unit of a layer's output; see
    `smoe.ops._classification.choice_errors`.

    Attributes:
        weighs_latitudes: Weigh the loss by the area of the pixels; ENS-10 does not.
    """

    experiment: ClassVar[str] = "ens10"

    data: EnsembleData = field(default_factory=EnsembleData)
    model: EnsembleModel = field(default_factory=UNetModel)
    rule: Rule = ENSEMBLE_RULE
    optimizer: Adam | SgdMomentum = ENSEMBLE_OPTIMIZER
    training: TrainingPlan = ENSEMBLE_TRAINING
    weighs_latitudes: bool = False


ENSEMBLE_RECIPES = {
    "ens10/unet": EnsembleRecipe(model=UNetModel()),
    "ens10/emos": EnsembleRecipe(model=EmosModel(), training=replace(ENSEMBLE_TRAINING, batch_size=1)),
    "ens10/smoe": EnsembleRecipe(model=SpatialMoEUNetModel()),
}
