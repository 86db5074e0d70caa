"""Medium-range weather (paper section 3.2): its tables, options and commands. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from smoe.rules import Frozen, RoutingClassification, Rule, StraightThrough
from smoe.training.plan import TrainingPlan
from smoe_paper.experiments.experiment import Experiment
from smoe_paper.experiments.tables import PublishedResult, ResultTable, Row, Scale, ShownMetric, TableSet
from smoe_paper.weather.recipes import (
    RASP_CONSTANTS,
    RASP_TARGETS,
    WEATHER_RECIPES,
    LocatedResNetModel,
    LowRankLocalResNetModel,
    ResNetModel,
    SpatialMoEResNetModel,
    WeatherData,
    WeatherModel,
    WeatherRecipe,
    WeatherViTModel,
    published_results,
)

_Z, _T = "rmse_z_500", "rmse_t_850"

_LABELS = {
    "weather/rt": "R&T ResNet",
    "weather/rt-wide": "R&T, 2x wide",
    "weather/lrlcn": "LRLCN",
    "weather/vit": "ViT 2 x 2",
    "weather/smoe-first": "SMoE after the first layer",
    "weather/smoe-last": "SMoE after the last layer",
    "weather/smoe": "SMoE, all 3 x 3",
    "weather/smoe-prior": "SMoE, all 3 x 3, land-sea prior",
    "weather/smoe-random": "SMoE, all 3 x 3, random fixed gate",
}


def reference_names(lead_hours: int) -> tuple[str, ...]:
    """Returns the keys of the stored scores of the baselines at this lead."""
    return tuple(f"{kind}-{lead_hours}h" for kind in ("persistence", "climatology", "weekly-climatology"))


def _models(num_days: int) -> ResultTable:
    name, lead_hours = f"weather/{num_days}-days", 24 * num_days
    rows: list[Row] = []
    for recipe_name, label in _LABELS.items():
        recipe = WEATHER_RECIPES[recipe_name]
        recipe = replace(recipe, data=replace(recipe.data, lead_hours=lead_hours))
        rows.append(Row((label,), recipe, published_results(recipe_name, lead_hours)))
    return ResultTable(
        name,
        f"Forecasts of {num_days} days",
        ("model",),
        tuple(rows),
        "Table 3",
        references=reference_names(lead_hours),
    )


def _smoe(rule: Rule, *, gate_lr: float | None = None, **model: Any) -> WeatherRecipe:
    recipe = WEATHER_RECIPES["weather/smoe"]
    return replace(
        recipe,
        model=SpatialMoEResNetModel(**model),
        rule=rule,
        optimizer=replace(recipe.optimizer, gate_lr=gate_lr),
    )


_FROZEN = Frozen()
_UNDAMPED = RoutingClassification(error_quantile=0.7)


def _routing() -> ResultTable:
    name = "weather/routing"
    recipes = {
        ("white noise", "frozen", "score"): _smoe(_FROZEN, gate="random"),
        ("white noise", "q 0.7, damping 0.1", "score"): WEATHER_RECIPES["weather/smoe"],
        ("white noise", "q 0.3, damping 0", "score"): _smoe(RoutingClassification.released()),
        ("white noise", "q 0.7, no damping", "score"): _smoe(_UNDAMPED),
        ("white noise", "q 0.7, no damping", "index"): _smoe(_UNDAMPED, order="index"),
        ("smooth", "frozen", "score"): _smoe(_FROZEN, gate="random", gate_init="smooth"),
        ("smooth", "q 0.7, damping 0.1", "score"): _smoe(RoutingClassification.paper(), gate_init="smooth"),
        ("smooth", "q 0.7, no damping", "score"): _smoe(_UNDAMPED, gate_init="smooth"),
        ("smooth", "q 0.7, no damping", "index"): _smoe(_UNDAMPED, gate_init="smooth", order="index"),
        ("smooth", "q 0.7, no damping, gate at 1e-4", "score"): _smoe(_UNDAMPED, gate_init="smooth", gate_lr=1e-4),
        ("smooth", "q 0.95, no damping", "score"): _smoe(
            RoutingClassification(error_quantile=0.95), gate_init="smooth"
        ),
    }
    rows = [Row(labels, recipe) for labels, recipe in recipes.items()]
    columns = ("gate starts as", "routing learns by", "order")
    references = reference_names(72)
    return ResultTable(name, "How gates of a deep net learn", columns, tuple(rows), references=references)


# A network with the SMoE layers that were the library's default when it was trained, written out, so that a stored
# run keeps its meaning when the default changes.
DEFAULT_MODEL: dict[str, Any] = {"gate": "factorised", "gate_init": "kaiming", "order": "families", "bias": "expert"}


def _defaults() -> ResultTable:
    recipe = WEATHER_RECIPES["weather/smoe"]

    def with_model(model: Any, rule: Rule = _FROZEN) -> WeatherRecipe:
        return replace(recipe, model=model, rule=rule)

    learned = StraightThrough(temperature=1.0, share=0.25, noise=1.25, warm_up=100, patience=0)
    affine = {**DEFAULT_MODEL, "local_affine": True}
    recipes = {
        "R&T ResNet": WEATHER_RECIPES["weather/rt"],
        "R&T, 2x wide": WEATHER_RECIPES["weather/rt-wide"],
        "R&T, 8 learned input channels": with_model(LocatedResNetModel(learned_channels=8)),
        "R&T, local affine": with_model(LocatedResNetModel(local_affine=True)),
        "LRLCN": WEATHER_RECIPES["weather/lrlcn"],
        "LRLCN, table": with_model(LowRankLocalResNetModel(combiner="table")),
        "SMoE, defaults": with_model(SpatialMoEResNetModel(**DEFAULT_MODEL), learned),
        "SMoE, defaults, gate frozen at a smooth start": with_model(
            SpatialMoEResNetModel(**{**DEFAULT_MODEL, "gate_init": "smooth"})
        ),
        "SMoE, defaults and local affine": with_model(SpatialMoEResNetModel(**affine), learned),
    }
    rows = [Row((label,), row) for label, row in recipes.items()]
    title = "Forecasts of 3 days: SMoE layers with default arguments beside simple ways to know the place"
    return ResultTable("weather/default", title, ("model",), tuple(rows), references=reference_names(72))


def _rates() -> ResultTable:
    """Every network at three peak rates of one cosine: a comparison at one rate is one of rates."""
    smoe = SpatialMoEResNetModel(**DEFAULT_MODEL, local_affine=True)
    models: dict[str, tuple[WeatherModel, Rule]] = {
        "R&T ResNet": (ResNetModel(), _FROZEN),
        "R&T, local affine": (LocatedResNetModel(local_affine=True), _FROZEN),
        "LRLCN, table": (LowRankLocalResNetModel(combiner="table"), _FROZEN),
        "SMoE, defaults": (smoe, StraightThrough()),
        "SMoE, defaults, gate frozen at a smooth start": (replace(smoe, gate_init="smooth"), _FROZEN),
    }
    recipe = WEATHER_RECIPES["weather/smoe"]
    training = replace(recipe.training, schedule="cosine", max_epochs=4, plateau_patience=None)
    rows = [
        Row(
            (label, f"{rate:g}"),
            replace(recipe, model=model, rule=rule, training=training, optimizer=replace(recipe.optimizer, lr=rate)),
        )
        for label, (model, rule) in models.items()
        for rate in (3e-3, 6e-3, 12e-3)
    ]
    title = "Forecasts of 3 days after four epochs of a cosine, by peak rate"
    return ResultTable("weather/rates", title, ("model", "rate"), tuple(rows), references=reference_names(72))


# Few fields, filters and blocks, so that a run takes minutes on one core; years of the simulated atmosphere. Targets
# and constants are those of Rasp and Thuerey, with which the stored runs were made.
SIMULATED = WeatherData(
    train_years=(2001, 2006),
    validation_years=(2007, 2007),
    test_years=(2008, 2008),
    targets=RASP_TARGETS,
    constants=RASP_CONSTANTS,
    inputs=("z_500", "z_850", "t_850", "u_500", "u_850", "v_500", "v_850", "t2m"),
    context_hours=(6, 0),
    start_every_hours=12,
)
_SIMULATED_TRAINING = TrainingPlan(
    batch_size=32,
    evaluation_batch_size=64,
    max_epochs=8,
    monitor="loss",
    monitor_mode="min",
    plateau_patience=2,
    min_lr=1e-6,
    early_stop_patience=8,
    stop_at=None,
)


def _small(recipe: WeatherRecipe) -> WeatherRecipe:
    model = recipe.model
    if isinstance(model, WeatherViTModel):
        model = replace(model, width=64, num_heads=4, depth=2, hidden=256)
    else:
        is_wide = isinstance(model, ResNetModel) and model.filters == 256
        model = replace(model, filters=32 if is_wide else 16, num_blocks=3, dropout=0.0)
    data = replace(SIMULATED, lead_hours=recipe.data.lead_hours)
    training = _SIMULATED_TRAINING
    if recipe.training.schedule == "cosine":
        training = replace(training, schedule="cosine", max_epochs=recipe.training.max_epochs)
    return replace(recipe, data=data, model=model, training=training)


WEATHER_TABLES = TableSet(
    name="weather",
    metrics=(ShownMetric(_Z, "Z500", decimals=0), ShownMetric(_T, "T850", decimals=2)),
    metric_text=(
        "Latitude-weighted root-mean-square errors (the root of the mean over all forecasts) of the geopotential at "
        "500 hPa in m2/s2 and of the temperature at 850 hPa in K: mean ± standard deviation over the seeds."
    ),
    tables=(_models(3), _models(5), _routing(), _defaults(), _rates()),
    scales=(
        Scale("paper", "WeatherBench at 5.625 degrees, trained on 1979-2015, tested on 2017-2018"),
        Scale(
            "small",
            "simulated atmosphere, trained on six years and tested on one; nets of 16 filters (2x wide: 32) and 3 "
            "blocks without dropout, ViT of width 64 and depth 2; 8 fields at two times; 8 epochs of 136 batches of 32",
            _small,
            kind="simulated",
        ),
    ),
    data_field="store",
)


class WeatherExperiment(Experiment):
    """Forecasts of some days on the globe, on WeatherBench or a simulated atmosphere."""

    name: ClassVar[str] = "weather"
    recipe_type = WeatherRecipe
    recipes = WEATHER_RECIPES
    data_commands: ClassVar[Mapping[tuple[str, str], tuple[str, str]]] = {
        ("prepare", "weather"): ("smoe_paper.weather.commands:run_prepare", "--root DATA --output STORE"),
    }
    tables = WEATHER_TABLES

    def published(self, recipe_name: str) -> tuple[PublishedResult, ...]:
        return published_results(recipe_name, 72)


WEATHER = WeatherExperiment()
