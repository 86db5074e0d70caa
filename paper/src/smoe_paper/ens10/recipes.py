"""Recipes of ENS-10 with all their options, and what the paper prints for them. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Literal

from smoe.rules import RoutingClassification, Rule
from smoe.training.plan import TrainingPlan
from smoe_paper.experiments.recipe import Adam, GateOptions, Recipe, SgdMomentum, check_year_ranges
from smoe_paper.experiments.tables import PublishedResult


@dataclass(frozen=True)
class _UNetSize:
    """Common options of both U-Nets.

    Attributes:
        filters: Number of filters of the first level; each level has twice as many as the level above.
        padding_mode: `zeros`, as in ENS-10, or `longitude`, which has no seam at longitude 0.
    """

    filters: int = 32
    padding_mode: Literal["zeros", "longitude"] = "zeros"


@dataclass(frozen=True)
class UNetModel(_UNetSize):
    """The U-Net of ENS-10."""


@dataclass(frozen=True)
class SpatialMoEUNetModel(GateOptions, _UNetSize):
    """The U-Net with its 3x3 convolutions as SMoE layers.

    Attributes:
        expert_ratio: Number of experts in the bank for each filter of the replaced layer.
        share_gates: Use one gate for all layers of the encoder, or the decoder, with the same grid and experts.
        converts_head: Also convert the last convolution, which has two filters; the paper does not mention it. Its
            outputs are mean and spread: with the order `score` the meaning of an expert's output would depend on the
            gate. So the last convolution requires `order="index"`.
    """

    expert_ratio: float = 4.0
    share_gates: bool = True
    converts_head: bool = False


@dataclass(frozen=True)
class EmosModel:
    """EMOS: one linear regression of the members and one of their spread, for the whole globe."""


EnsembleModel = UNetModel | SpatialMoEUNetModel | EmosModel


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
    """

    experiment: ClassVar[str] = "ens10"

    data: EnsembleData = field(default_factory=EnsembleData)
    model: EnsembleModel = field(default_factory=UNetModel)
    rule: Rule = ENSEMBLE_RULE
    optimizer: Adam | SgdMomentum = ENSEMBLE_OPTIMIZER
    training: TrainingPlan = ENSEMBLE_TRAINING


ENSEMBLE_RECIPES = {
    "ens10/unet": EnsembleRecipe(model=UNetModel()),
    "ens10/emos": EnsembleRecipe(model=EmosModel(), training=replace(ENSEMBLE_TRAINING, batch_size=1)),
    "ens10/smoe": EnsembleRecipe(model=SpatialMoEUNetModel()),
}


MEMBERS = (5, 10)
_TABLE = "Table 5"

# By recipe and score: mean and spread of Z500 in m2 s-2, T850 and T2m in K, each with 5 and with 10 members.
_PRINTED = {
    ("ens10/emos", "crps"): {
        "z500": ((79.12, 0.12), (78.80, 0.21)),
        "t850": ((0.721, 0.01), (0.706, 0.04)),
        "t2m": ((0.720, 0.00), (0.711, 0.03)),
    },
    ("ens10/unet", "crps"): {
        "z500": ((76.54, 0.20), (76.18, 0.12)),
        "t850": ((0.685, 0.00), (0.670, 0.01)),
        "t2m": ((0.657, 0.01), (0.644, 0.01)),
    },
    ("ens10/smoe", "crps"): {
        "z500": ((68.94, 0.14), (67.43, 0.12)),
        "t850": ((0.612, 0.01), (0.590, 0.02)),
        "t2m": ((0.601, 0.02), (0.594, 0.02)),
    },
    ("ens10/emos", "eecrps"): {
        "z500": ((29.21, 0.18), (29.02, 0.13)),
        "t850": ((0.247, 0.00), (0.245, 0.02)),
        "t2m": ((0.244, 0.00), (0.241, 0.02)),
    },
    ("ens10/unet", "eecrps"): {
        "z500": ((27.78, 0.11), (27.55, 0.19)),
        "t850": ((0.230, 0.01), (0.229, 0.01)),
        "t2m": ((0.225, 0.00), (0.220, 0.01)),
    },
    ("ens10/smoe", "eecrps"): {
        "z500": ((23.79, 0.20), (23.10, 0.16)),
        "t850": ((0.207, 0.03), (0.197, 0.03)),
        "t2m": ((0.199, 0.01), (0.190, 0.02)),
    },
}


def paper_results(recipe: str, task: str, members: int) -> tuple[PublishedResult, ...]:
    """CRPS and EECRPS that the paper prints for a model, a variable and a number of members; nothing for others."""
    if (recipe, "crps") not in _PRINTED or members not in MEMBERS:
        return ()
    results: list[PublishedResult] = []
    for metric in ("crps", "eecrps"):
        mean, spread = _PRINTED[recipe, metric][task][MEMBERS.index(members)]
        results.append(PublishedResult(metric, mean, spread, None, _TABLE))
    return tuple(results)
