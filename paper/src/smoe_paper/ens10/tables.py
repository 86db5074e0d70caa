"""Post-processing of ensembles (paper section 3.3): its tables, options and commands. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from smoe.rules import Frozen, RoutingClassification, Rule
from smoe_paper.ens10.recipes import (
    ENSEMBLE_RECIPES,
    ENSEMBLE_RULE,
    MEMBERS,
    EmosModel,
    EnsembleData,
    EnsembleRecipe,
    SpatialMoEUNetModel,
    paper_results,
)
from smoe_paper.experiments.experiment import Experiment
from smoe_paper.experiments.tables import ResultTable, Row, Scale, ShownMetric, TableSet

Task = Literal["z500", "t850", "t2m"]

_LABELS = {"ens10/emos": "EMOS", "ens10/unet": "U-Net", "ens10/smoe": "SMoE U-Net"}
_TITLES: dict[Task, str] = {"z500": "Z500, in m2/s2", "t850": "T850, in K", "t2m": "T2m, in K"}
_SCALES = ("paper", "small")


def store_folder(data: EnsembleData, folder: Path) -> Path:
    """Returns the path of the store of a task and a number of members in a folder of stores: `t850-10`."""
    return folder / f"{data.task}-{data.members}"


def reference_name(task: str, members: int, scale: str) -> str:
    """Returns the key of the stored scores of a raw ensemble."""
    return f"raw-{task}-{members}-{scale}"


def _metrics(task: Task) -> tuple[ShownMetric, ...]:
    decimals = 2 if task == "z500" else 3
    return (ShownMetric("crps", "CRPS", decimals), ShownMetric("eecrps", "EECRPS", decimals))


def _of(recipe: EnsembleRecipe, task: Task, members: int) -> EnsembleRecipe:
    return replace(recipe, data=replace(recipe.data, task=task, members=members))  # type: ignore[arg-type]


def _variable(task: Task) -> ResultTable:
    name = f"ens10/{task}"
    rows = [
        Row(
            (label, f"{members} members"),
            _of(ENSEMBLE_RECIPES[recipe_name], task, members),
            paper_results(recipe_name, task, members),
        )
        for members in MEMBERS
        for recipe_name, label in _LABELS.items()
    ]
    references = tuple(reference_name(task, members, scale) for scale in _SCALES for members in MEMBERS)
    title = f"Correcting an ensemble's {_TITLES[task]}"
    return ResultTable(
        name, title, ("model", "ensemble"), tuple(rows), "Table 5", references=references, metrics=_metrics(task)
    )


def _smoe(rule: Rule, gate_lr: float | None = None, **model: Any) -> EnsembleRecipe:
    recipe = ENSEMBLE_RECIPES["ens10/smoe"]
    optimizer = replace(recipe.optimizer, gate_lr=gate_lr)
    return _of(replace(recipe, model=SpatialMoEUNetModel(**model), rule=rule, optimizer=optimizer), "t850", 10)


def _routing() -> ResultTable:
    name = "ens10/routing"
    undamped = replace(ENSEMBLE_RULE, damping=None)
    released = replace(RoutingClassification.released(), weight=ENSEMBLE_RULE.weight)
    frozen = Frozen()
    recipes = {
        ("white noise", "frozen", "score"): _smoe(frozen, gate="random"),
        ("white noise", "q 0.7, damping 0.1", "score"): _smoe(ENSEMBLE_RULE),
        ("white noise", "q 0.7, no damping", "score"): _smoe(undamped),
        ("white noise", "q 0.3, damping 0", "score"): _smoe(released),
        ("white noise", "q 0.7, no damping, gate at 1e-2", "score"): _smoe(undamped, gate_lr=1e-2),
        ("smooth", "frozen", "score"): _smoe(frozen, gate="random", gate_init="smooth"),
        ("smooth", "q 0.7, no damping", "score"): _smoe(undamped, gate_init="smooth"),
        ("smooth", "q 0.7, no damping", "index"): _smoe(undamped, gate_init="smooth", order="index"),
        ("smooth", "frozen", "index"): _smoe(frozen, gate="random", gate_init="smooth", order="index"),
    }
    rows = [Row(labels, recipe) for labels, recipe in recipes.items()]
    columns = ("gate starts as", "routing learns by", "order")
    return ResultTable(
        name, "How the gates of a U-Net learn: T850 from ten members", columns, tuple(rows),
        references=tuple(reference_name("t850", 10, scale) for scale in _SCALES),
        metrics=_metrics("t850"),
    )  # fmt: skip


# Years of the simulated ensemble. One year is kept for the choice of the best weights, because a network soon overfits
# so few forecasts: after 60 epochs on 34 of them a U-Net's CRPS was 0.20 K in training and 0.77 K on others; the raw
# ensemble has 0.72 K.
SIMULATED = EnsembleData(train_years=(2001, 2001), validation_years=(2002, 2002), test_years=(2003, 2003))
_SIMULATED_EPOCHS = 40
# EMOS at 1e-3 still improves after twenty epochs; 1e-2 is the rate of ENS-10's own code.
_SIMULATED_LR, _EMOS_LR = 3e-4, 1e-2


def _small(recipe: EnsembleRecipe) -> EnsembleRecipe:
    model = recipe.model if isinstance(recipe.model, EmosModel) else replace(recipe.model, filters=16)
    data = replace(SIMULATED, task=recipe.data.task, members=recipe.data.members)
    training = replace(
        recipe.training,
        max_epochs=_SIMULATED_EPOCHS,
        plateau_patience=_SIMULATED_EPOCHS,
        early_stop_patience=_SIMULATED_EPOCHS,
    )
    # The paper's 1e-5 takes 2,200 steps on 127 times as many pixels; here it would hardly change the weights.
    optimizer = replace(recipe.optimizer, lr=_EMOS_LR if isinstance(model, EmosModel) else _SIMULATED_LR)
    return replace(recipe, data=data, model=model, training=training, optimizer=optimizer)


ENS10_TABLES = TableSet(
    name="ens10",
    metrics=_metrics("t850"),
    metric_text=(
        "Continuous ranked probability scores, and the same weighted by the extreme forecast index (EECRPS), both "
        "means over all pixels and forecasts without latitude weights, as in ENS-10: mean ± standard deviation over "
        "the seeds. The raw ensemble is scored as the normal distribution of its mean and spread, which the models "
        "correct."
    ),
    tables=(_variable("z500"), _variable("t850"), _variable("t2m"), _routing()),
    scales=(
        Scale("paper", "ENS-10 at 0.5 degrees, trained on 1998-2014, tested on 2016-2017"),
        Scale(
            "small",
            "simulated ensemble at 5.625 degrees, a year each to train, to choose the best weights and to test; U-Nets "
            f"of 16 filters; {_SIMULATED_EPOCHS} epochs at a learning rate of {_SIMULATED_LR:g} (EMOS: {_EMOS_LR:g})",
            _small,
            kind="simulated",
        ),
    ),
    data_field="store",
    data_folder=store_folder,
)


class EnsembleExperiment(Experiment):
    """Post-processing of ensemble forecasts, on ENS-10 or a simulated ensemble."""

    name: ClassVar[str] = "ens10"
    recipe_type = EnsembleRecipe
    recipes = ENSEMBLE_RECIPES
    data_commands: ClassVar[Mapping[tuple[str, str], tuple[str, str]]] = {
        ("prepare", "ens10"): (
            "smoe_paper.ens10.commands:run_prepare",
            "--root DATA --output STORE --task z500 [--members 10]",
        ),
    }
    tables = ENS10_TABLES


ENS10 = EnsembleExperiment()
