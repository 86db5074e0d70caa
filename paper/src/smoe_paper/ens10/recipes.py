"""Post-processing of ensembles (paper section 3.3): recipes with all their options, and tables. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from smoe.rules import Frozen, RoutingClassification, Rule, StraightThrough
from smoe.training.plan import TrainingPlan
from smoe_paper.experiments.experiment import Experiment
from smoe_paper.experiments.recipe import Adam, GateOptions, Recipe, check_year_ranges
from smoe_paper.experiments.tables import PublishedResult, ResultTable, Scale, ShownMetric, TableSet, make_table


@dataclass(frozen=True)
class _UNetSize:
    """Common options of both U-Nets."""

    filters: int = 32  # Number of filters of the first level; each level has twice as many as the level above.


@dataclass(frozen=True)
class UNetModel(_UNetSize):
    """The U-Net of ENS-10."""

    local_affine: bool = False  # A learned scale and offset for each pixel and channel, behind each convolution.
    learned_channels: int = 0  # Number of channels of learned numbers, one for each pixel, beside the input.


@dataclass(frozen=True)
class SpatialMoEUNetModel(GateOptions, _UNetSize):
    """The U-Net with its 3x3 convolutions as SMoE layers."""

    expert_ratio: float = 4.0  # Number of experts in the bank for each filter of the replaced layer.
    # Use one gate for all layers of the encoder, or the decoder, with the same grid and experts.
    share_gates: bool = True


@dataclass(frozen=True)
class EmosModel:
    """EMOS: one linear regression of the members and one of their spread, for the whole globe."""

    # What each pixel adds to the numbers of the globe: nothing, constants (a map of errors), or all.
    places: Literal["none", "constants", "all"] = "none"


@dataclass(frozen=True)
class PixelModel:
    """Networks of a pixel, the same at all pixels but for learned numbers of each (Rasp and Lerch, 2018)."""

    hidden: int = 64  # Width of the two hidden layers; 0: the output is the learned numbers, a map of mean errors.
    embedding: int = 8  # Learned numbers of each pixel.


EnsembleModel = UNetModel | SpatialMoEUNetModel | EmosModel | PixelModel


@dataclass(frozen=True)
class EnsembleData:
    """A store of one variable and number of members, written by `smoe data prepare ens10`.

    ENS-10 trains on 1998-2015 and takes the weights of the epoch that is best in the test years. Here the test years
    do not influence the training: the last training year is held back instead. `--data.train-years 1998 2015
    --data.validation-years 2016 2017` is ENS-10's way.
    """

    store: Path | None = None  # Folder of the store.
    # First and last year of training, by the dates for which the forecasts are valid.
    train_years: tuple[int, int] = (1998, 2014)
    validation_years: tuple[int, int] = (2015, 2015)  # First and last year for the choice of the best weights.
    test_years: tuple[int, int] = (2016, 2017)  # First and last year of the test scores.
    # Required task of the store, `z500`, `t850` or `t2m`; None accepts any.
    task: Literal["z500", "t850", "t2m"] | None = None
    members: Literal[5, 10] | None = None  # Required number of members of the store; None accepts any.

    def __post_init__(self) -> None:
        check_year_ranges(self)


# Ten epochs at one learning rate: the patience never ends.
ENSEMBLE_TRAINING = TrainingPlan(
    batch_size=8, evaluation_batch_size=8, max_epochs=10, monitor="crps", early_stop_patience=10
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
    optimizer: Adam = ENSEMBLE_OPTIMIZER
    training: TrainingPlan = ENSEMBLE_TRAINING


ENSEMBLE_RECIPES = {
    "ens10/unet": EnsembleRecipe(model=UNetModel()),
    "ens10/emos": EnsembleRecipe(model=EmosModel(), training=replace(ENSEMBLE_TRAINING, batch_size=1)),
    "ens10/smoe": EnsembleRecipe(model=SpatialMoEUNetModel()),
}


MEMBERS = (5, 10)
# By recipe: mean and spread of CRPS and EECRPS, each with 5 and with 10 members, of Z500 in m2 s-2, T850 and T2m in K.
_PRINTED = {
    "ens10/emos": {
        "z500": (((79.12, 0.12), (78.80, 0.21)), ((29.21, 0.18), (29.02, 0.13))),
        "t850": (((0.721, 0.01), (0.706, 0.04)), ((0.247, 0.00), (0.245, 0.02))),
        "t2m": (((0.720, 0.00), (0.711, 0.03)), ((0.244, 0.00), (0.241, 0.02))),
    },
    "ens10/unet": {
        "z500": (((76.54, 0.20), (76.18, 0.12)), ((27.78, 0.11), (27.55, 0.19))),
        "t850": (((0.685, 0.00), (0.670, 0.01)), ((0.230, 0.01), (0.229, 0.01))),
        "t2m": (((0.657, 0.01), (0.644, 0.01)), ((0.225, 0.00), (0.220, 0.01))),
    },
    "ens10/smoe": {
        "z500": (((68.94, 0.14), (67.43, 0.12)), ((23.79, 0.20), (23.10, 0.16))),
        "t850": (((0.612, 0.01), (0.590, 0.02)), ((0.207, 0.03), (0.197, 0.03))),
        "t2m": (((0.601, 0.02), (0.594, 0.02)), ((0.199, 0.01), (0.190, 0.02))),
    },
}


def paper_results(recipe: str, task: str, members: int) -> tuple[PublishedResult, ...]:
    """CRPS and EECRPS that the paper prints for a model, a variable and a number of members; nothing for others."""
    if recipe not in _PRINTED or members not in MEMBERS:
        return ()
    return tuple(
        PublishedResult(metric, *cells[MEMBERS.index(members)], None, "Table 5")
        for metric, cells in zip(("crps", "eecrps"), _PRINTED[recipe][task], strict=True)
    )


Task = Literal["z500", "t850", "t2m"]
_LABELS = {"ens10/emos": "EMOS", "ens10/unet": "U-Net", "ens10/smoe": "SMoE U-Net"}
_DEFAULT = SpatialMoEUNetModel(gate="factorised", expert_ratio=2.0, order="families", bias="expert", local_affine=True)
# Rows that the paper does not have: the simplest rivals that know the place, and layers with default arguments.
_RIVALS: dict[str, EnsembleModel] = {
    "Map of mean errors": PixelModel(hidden=0, embedding=2),
    "EMOS, map of errors": EmosModel(places="constants"),
    "EMOS of each pixel": EmosModel(places="all"),
    "Pixel network with embedding": PixelModel(),
    "U-Net, 8 learned input channels": UNetModel(learned_channels=8),
    "U-Net, local affine": UNetModel(local_affine=True),
    "SMoE U-Net, defaults": _DEFAULT,
}
_TITLES: dict[Task, str] = {"z500": "Z500, in m2/s2", "t850": "T850, in K", "t2m": "T2m, in K"}
_SCALES = ("paper", "small")


def store_folder(data: EnsembleData, folder: Path) -> Path:
    """The path of the store of a task and a number of members in a folder of stores: `t850-10`."""
    return folder / f"{data.task}-{data.members}"


def reference_name(task: str, members: int, scale: str) -> str:
    """The key of the stored scores of a raw ensemble."""
    return f"raw-{task}-{members}-{scale}"


def _metrics(task: Task) -> tuple[ShownMetric, ...]:
    decimals = 2 if task == "z500" else 3
    return (ShownMetric("crps", "CRPS", decimals), ShownMetric("eecrps", "EECRPS", decimals))


def _of(recipe: EnsembleRecipe, task: Task, members: int) -> EnsembleRecipe:
    return replace(recipe, data=replace(recipe.data, task=task, members=members))  # type: ignore[arg-type]


def _variable(task: Task) -> ResultTable:
    rows: list[Any] = []
    for members in MEMBERS:
        for name, label in _LABELS.items():
            recipe = _of(ENSEMBLE_RECIPES[name], task, members)
            rows.append((f"{label}; {members} members", recipe, *paper_results(name, task, members)))
        for label, model in _RIVALS.items():
            recipe = replace(ENSEMBLE_RECIPES["ens10/unet"], model=model, rule=StraightThrough())
            rows.append((f"{label}; {members} members", _of(recipe, task, members)))
    references = tuple(reference_name(task, members, scale) for scale in _SCALES for members in MEMBERS)
    title = f"Correcting an ensemble's {_TITLES[task]}"
    options: dict[str, Any] = {"references": references, "metrics": _metrics(task)}
    return make_table(f"ens10/{task}", title, "model; ensemble", rows, "Table 5", **options)


def _smoe(rule: Rule, **model: Any) -> EnsembleRecipe:
    return _of(replace(ENSEMBLE_RECIPES["ens10/smoe"], model=SpatialMoEUNetModel(**model), rule=rule), "t850", 10)


_UNDAMPED = replace(ENSEMBLE_RULE, damping=None)
_RELEASED = replace(RoutingClassification.released(), weight=ENSEMBLE_RULE.weight)
_ROUTING = make_table(
    "ens10/routing",
    "How the gates of a U-Net learn from white noise, in score order: T850 from ten members",
    "routing learns by",
    [
        ("frozen", _smoe(Frozen(), gate="random")),
        ("q 0.7, damping 0.1", _smoe(ENSEMBLE_RULE)),
        ("q 0.7, no damping", _smoe(_UNDAMPED)),
        ("q 0.3, damping 0", _smoe(_RELEASED)),
    ],
    references=tuple(reference_name("t850", 10, scale) for scale in _SCALES),
    metrics=_metrics("t850"),
)


# Years of the simulated ensemble. One year is kept for the choice of the best weights, because a network soon overfits
# so few forecasts: after 60 epochs on 34 of them a U-Net's CRPS was 0.20 K in training and 0.77 K on others; the raw
# ensemble has 0.72 K.
SIMULATED = EnsembleData(train_years=(2001, 2001), validation_years=(2002, 2002), test_years=(2003, 2003))
_SIMULATED_EPOCHS = 40
# EMOS at 1e-3 still improves after twenty epochs; 1e-2 is the rate of ENS-10's own code.
_SIMULATED_LR, _EMOS_LR = 3e-4, 1e-2


def _small(recipe: EnsembleRecipe) -> EnsembleRecipe:
    model, is_pixel = recipe.model, isinstance(recipe.model, EmosModel | PixelModel)
    model = replace(model, filters=16) if isinstance(model, _UNetSize) else model
    data = replace(SIMULATED, task=recipe.data.task, members=recipe.data.members)
    patience = dict.fromkeys(("max_epochs", "plateau_patience", "early_stop_patience"), _SIMULATED_EPOCHS)
    training = replace(recipe.training, **patience)
    # The paper's 1e-5 takes 2,200 steps on 127 times as many pixels; here it would hardly change the weights.
    optimizer = replace(recipe.optimizer, lr=_EMOS_LR if is_pixel else _SIMULATED_LR)
    return replace(recipe, data=data, model=model, training=training, optimizer=optimizer)


class EnsembleExperiment(Experiment):
    """Post-processing of ensemble forecasts, on ENS-10 or a simulated ensemble."""

    name = "ens10"
    recipe_type = EnsembleRecipe
    recipes = ENSEMBLE_RECIPES
    tables = TableSet(
        name="ens10",
        metrics=_metrics("t850"),
        metric_text=(
            "Continuous ranked probability scores, and the same weighted by the extreme forecast index (EECRPS), both "
            "means over all pixels and forecasts without latitude weights, as in ENS-10: mean ± standard deviation "
            "over the seeds. The raw ensemble is scored as the normal distribution of its mean and spread, which the "
            "models correct."
        ),
        tables=(_variable("z500"), _variable("t850"), _variable("t2m"), _ROUTING),
        scales=(
            Scale("paper", "ENS-10 at 0.5 degrees, trained on 1998-2014, tested on 2016-2017"),
            Scale(
                "small",
                "simulated ensemble at 5.625 degrees, a year each to train, to choose the best weights and to test; "
                f"U-Nets of 16 filters; {_SIMULATED_EPOCHS} epochs at a learning rate of {_SIMULATED_LR:g} (EMOS "
                f"and other networks of a pixel: {_EMOS_LR:g})",
                _small,
                kind="simulated",
            ),
        ),
        data_field="store",
        data_folder=store_folder,
    )


ENS10 = EnsembleExperiment()
