"""Medium-range weather (paper section 3.2): recipes with all their options, and tables. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from smoe.options import Combiner
from smoe.rules import Frozen, RoutingClassification, Rule, StraightThrough
from smoe.training.plan import TrainingPlan
from smoe_paper.experiments.experiment import Experiment
from smoe_paper.experiments.recipe import Adam, GateOptions, Recipe, check_year_ranges
from smoe_paper.experiments.tables import PublishedResult, ResultTable, Row, Scale, ShownMetric, TableSet, make_table


@dataclass(frozen=True)
class _ResNetSize:
    """Common options of all variants of the ResNet."""

    filters: int = 128  # Number of filters of every convolution but the last; 256 is the paper's `2x wide`.
    num_blocks: int = 19  # Number of residual blocks of two convolutions each.
    dropout: float = 0.1  # Dropout probability after every convolution but the last.


@dataclass(frozen=True)
class _Gate(GateOptions):
    """Options of the gate of SMoE layers, with a prior."""

    # `land_sea` starts the gate with land preferring one half of the experts and sea the other.
    prior: Literal["none", "land_sea"] = "none"


@dataclass(frozen=True)
class ResNetModel(_ResNetSize):
    """The ResNet of Rasp and Thuerey."""


@dataclass(frozen=True)
class LocatedResNetModel(_ResNetSize):
    """The ResNet with simple kinds of position information, as baselines."""

    # Multiply each output of the blocks' convolutions by a learned number at each pixel, and add another.
    local_affine: bool = False
    learned_channels: int = 0  # Number of learned fields that are appended to the input.


@dataclass(frozen=True)
class LowRankLocalResNetModel(_ResNetSize):
    """The ResNet with the 3x3 convolutions of its blocks as low-rank locally connected layers (LRLCN)."""

    # Number of basis filters; the paper gives none. With 2, there are as many filters as experts.
    spatial_rank: int = 2
    combiner: Combiner = "input"  # Network that computes each pixel's mixture; the paper's text names `input` for heat.


@dataclass(frozen=True)
class AddedSpatialMoEModel(_Gate, _ResNetSize):
    """The ResNet with one SMoE layer added."""

    # `first` is after the 7x7 convolution, as a separate block (SMoE, LeakyReLU, batch norm, dropout). `last` is such a
    # block after the last residual block, with the same number of filters.
    position: Literal["first", "last"] = "first"


@dataclass(frozen=True)
class SpatialMoEResNetModel(_Gate, _ResNetSize):
    """The ResNet with the 3x3 convolutions of its blocks as SMoE layers."""

    share_gates: bool = True  # Use one gate for all layers.


@dataclass(frozen=True)
class WeatherViTModel:
    """A vision transformer from fields to fields."""

    patch_size: int = 2  # Rows and columns of a patch, in pixels.
    width: int = 1024  # Number of features of a token.
    num_heads: int = 8  # Number of attention heads.
    depth: int = 4  # Number of blocks.
    hidden: int = 4096  # Number of features inside the MLPs.
    positions: bool = True  # Add a fixed embedding of its position to each token.


WeatherModel = (
    ResNetModel
    | LocatedResNetModel
    | LowRankLocalResNetModel
    | AddedSpatialMoEModel
    | SpatialMoEResNetModel
    | WeatherViTModel
)


@dataclass(frozen=True)
class WeatherData:
    """A store written by `smoe data prepare weather`, and the inputs and targets."""

    store: Path | None = None  # Folder of the store.
    train_years: tuple[int, int] = (1979, 2015)  # First and last year of training.
    # First and last year for the schedule and the choice of the best weights.
    validation_years: tuple[int, int] = (2016, 2016)
    test_years: tuple[int, int] = (2017, 2018)  # First and last year of the test scores.
    targets: tuple[str, ...] = ("z_500", "t_850")  # Channels to forecast.
    inputs: tuple[str, ...] | None = None  # Channels of the input; None for all of the store.
    constants: tuple[str, ...] | None = None  # Constants of the input; None for all of the store.
    context_hours: tuple[int, ...] = (12, 6, 0)  # Hours before the start of the input's times, in descending order.
    lead_hours: int = 72  # Lead of the forecasts.
    # Hours between the starts in training and validation; None for every step of the store.
    start_every_hours: int | None = None
    test_every_hours: int = 6  # Hours between the starts in the test.
    # As Rasp and Thuerey, because radiation and precipitation have gaps there.
    skip_hours: int = 24  # Hours left out at the beginning of the training years.
    # Append the targets' means over the training years, in the week of the forecast, to the input, and forecast the
    # difference from them.
    weekly_means: bool = False
    # First and last year of pretraining, whose last year is for its validation: training begins with
    # its best weights. None for random weights.
    pretrain_years: tuple[int, int] | None = None
    pretrain_store: Path | None = None  # Store of the years before; None for the same.
    pretrain_lead_hours: int | None = None  # Lead of the training before; None for the same.

    def __post_init__(self) -> None:
        check_year_ranges(self)
        if "tp" in self.targets:
            raise ValueError("targets must not name tp: precipitation is an input only, as its logarithm")
        if self.pretrain_years is not None and self.pretrain_years[0] >= self.pretrain_years[1]:
            raise ValueError(f"pretrain_years must be a first year and a later last one, got {self.pretrain_years}")


# The paper's appendix: divide the learning rate by 10 when the validation loss has not improved for two epochs: a
# patience of 1 in torch.
SMOE_TRAINING = TrainingPlan(
    batch_size=64, evaluation_batch_size=64, plateau_patience=1, min_lr=1e-6, early_stop_patience=5
)
# Keras's L2 penalty.
WEATHER_OPTIMIZER = Adam(l2=1e-5)


@dataclass(frozen=True)
class WeatherRecipe(Recipe):
    """Medium-range weather on the globe."""

    experiment: ClassVar[str] = "weather"

    data: WeatherData = field(default_factory=WeatherData)
    model: WeatherModel = field(default_factory=ResNetModel)
    # The paper's text; the setting of the heat experiment (0.3, 0.0) would zero most of the error of every layer.
    rule: Rule = field(default_factory=RoutingClassification.paper)
    optimizer: Adam = WEATHER_OPTIMIZER
    training: TrainingPlan = SMOE_TRAINING

    def pretraining(self) -> WeatherRecipe | None:
        data = self.data
        if data.pretrain_years is None:
            return None
        first, last = data.pretrain_years
        before = replace(
            data,
            store=data.pretrain_store or data.store,
            lead_hours=data.pretrain_lead_hours or data.lead_hours,
            train_years=(first, last - 1),
            validation_years=(last, last),
            test_years=(last, last),
            pretrain_years=None,
            pretrain_store=None,
            pretrain_lead_hours=None,
        )
        return replace(self, data=before)


# The rows of the paper's table, trained as in its appendix.
WEATHER_RECIPES = {
    "weather/rt": WeatherRecipe(model=ResNetModel()),
    "weather/rt-wide": WeatherRecipe(model=ResNetModel(filters=256)),
    "weather/lrlcn": WeatherRecipe(model=LowRankLocalResNetModel()),
    "weather/vit": WeatherRecipe(model=WeatherViTModel()),
    "weather/smoe-first": WeatherRecipe(model=AddedSpatialMoEModel(position="first")),
    # The paper says `after the final convolution` and 256 experts of which 128 are selected; both are true only with
    # 128 filters, before the output convolution.
    "weather/smoe-last": WeatherRecipe(model=AddedSpatialMoEModel(position="last")),
    "weather/smoe": WeatherRecipe(model=SpatialMoEResNetModel()),
    "weather/smoe-prior": WeatherRecipe(model=SpatialMoEResNetModel(prior="land_sea")),
    "weather/smoe-random": WeatherRecipe(model=SpatialMoEResNetModel(gate="random"), rule=Frozen()),
    # 150 years of a climate model.
    "weather/rt-pretrained": WeatherRecipe(WeatherData(pretrain_years=(1850, 2000)), ResNetModel()),
    "weather/smoe-pretrained": WeatherRecipe(
        WeatherData(pretrain_years=(1850, 2000)), SpatialMoEResNetModel(prior="land_sea")
    ),
}


LEADS = (72, 120)
# RMSE of Z500 and of T850, each at 3 and at 5 days, with its standard deviation over three runs (Table 3).
_PAPER = {
    "rt": (((316, 2.4), (563, 3.1)), ((1.80, 0.02), (2.84, 0.03))),
    "rt-wide": (((310, 2.0), (555, 2.8)), ((1.76, 0.03), (2.78, 0.01))),
    "lrlcn": (((290, 1.4), (549, 1.9)), ((1.73, 0.03), (2.79, 0.01))),
    "vit": (((438, 2.8), (638, 3.1)), ((2.24, 0.04), (2.88, 0.03))),
    "smoe-first": (((305, 1.9), (556, 2.2)), ((1.77, 0.01), (2.80, 0.03))),
    "smoe-last": (((298, 2.6), (553, 3.2)), ((1.73, 0.02), (2.78, 0.04))),
    "smoe": (((278, 2.0), (530, 1.8)), ((1.69, 0.01), (2.65, 0.01))),
    "smoe-prior": (((270, 1.9), (525, 2.0)), ((1.66, 0.02), (2.60, 0.01))),
    "smoe-random": (((328, 3.7), (572, 4.1)), ((1.89, 0.08), (2.96, 0.05))),
    "rt-pretrained": (((267, 1.8), (500, 2.4)), ((1.66, 0.03), (2.43, 0.02))),
    "smoe-pretrained": (((253, 2.1), (488, 1.7)), ((1.57, 0.02), (2.34, 0.02))),
    "smoe-extra": (((232, 1.5), (440, 1.2)), ((1.46, 0.02), (2.19, 0.01))),
    "smoe-fine": (((198, 1.8), (382, 2.0)), ((1.42, 0.00), (2.06, 0.02))),
}


def published_results(recipe_name: str, lead_hours: int) -> tuple[PublishedResult, ...]:
    """What the paper prints for a recipe and a lead; nothing for an additional recipe."""
    row = _PAPER.get(recipe_name.removeprefix("weather/"))
    if row is None or lead_hours not in LEADS:
        return ()
    return tuple(
        PublishedResult(metric, *cells[LEADS.index(lead_hours)], None, f"Table 3, {lead_hours} h")
        for metric, cells in zip(("rmse_z_500", "rmse_t_850"), row, strict=True)
    )


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
    "weather/rt-pretrained": "R&T ResNet, pretrained",
    "weather/smoe-pretrained": "SMoE, all 3 x 3, land-sea prior, pretrained",
}
# Nothing here stands for their data: ERA5 from 1959 on, and at 1.4 degrees.
_BEYOND = {"smoe-extra": "the same with extra ERA5", "smoe-fine": "the same with extra ERA5 at 1.4 degrees"}


def reference_names(lead_hours: int) -> tuple[str, ...]:
    """Returns the keys of the stored scores of the baselines at this lead."""
    return tuple(f"{kind}-{lead_hours}h" for kind in ("persistence", "climatology", "weekly-climatology"))


def _table(
    name: str, title: str, columns: str, rows: Any, source: str = "", lead_hours: int = 72, **options: Any
) -> ResultTable:
    references = reference_names(lead_hours)
    return make_table(f"weather/{name}", title, columns, rows, source, references=references, **options)


def _models(num_days: int) -> ResultTable:
    lead_hours, rows = 24 * num_days, []
    for name, label in _LABELS.items():
        recipe = WEATHER_RECIPES[name]
        recipe = replace(recipe, data=replace(recipe.data, lead_hours=lead_hours))
        rows.append((label, recipe, *published_results(name, lead_hours)))
    table = _table(f"{num_days}-days", f"Forecasts of {num_days} days", "model", rows, "Table 3", lead_hours)
    more = WEATHER_RECIPES["weather/smoe-pretrained"]
    more = replace(more, data=replace(more.data, train_years=(1959, 2015), lead_hours=lead_hours))
    beyond = [
        Row((label,), more, published_results(name, lead_hours), can_run=False) for name, label in _BEYOND.items()
    ]
    return replace(table, rows=(*table.rows, *beyond))


def _smoe(rule: Rule, **model: Any) -> WeatherRecipe:
    return replace(WEATHER_RECIPES["weather/smoe"], model=SpatialMoEResNetModel(**model), rule=rule)


_FROZEN = Frozen()
_SMOOTH: dict[str, Any] = {"gate_init": "smooth"}
_ROUTING = [
    ("white noise; frozen", _smoe(_FROZEN, gate="random")),
    ("white noise; q 0.7, damping 0.1", WEATHER_RECIPES["weather/smoe"]),
    ("white noise; q 0.3, damping 0", _smoe(RoutingClassification.released())),
    ("white noise; q 0.7, no damping", _smoe(RoutingClassification(error_quantile=0.7))),
    ("smooth; frozen", _smoe(_FROZEN, gate="random", **_SMOOTH)),
    ("smooth; q 0.7, damping 0.1", _smoe(RoutingClassification.paper(), **_SMOOTH)),
]


# Layers with the library's default arguments, written out, so that a stored run keeps its meaning when these change.
_DEFAULT = SpatialMoEResNetModel(
    gate="factorised", gate_init="kaiming", order="families", bias="expert", local_affine=True
)
# Every network at several peak rates of one cosine: a comparison at one rate is one of rates.
_RATES, _VIT_RATES = (12e-3, 24e-3, 48e-3), (1e-3, 3e-3, 6e-3)
_MORE_RATES = (6e-3, *_RATES, 96e-3, 192e-3)
_AT_RATES: dict[str, tuple[WeatherModel, Rule, tuple[float, ...]]] = {
    "R&T ResNet": (ResNetModel(), _FROZEN, _RATES),
    "R&T, 2x wide": (ResNetModel(filters=256), _FROZEN, _RATES),
    "R&T, 8 learned input channels": (LocatedResNetModel(learned_channels=8), _FROZEN, _RATES),
    "R&T, local affine": (LocatedResNetModel(local_affine=True), _FROZEN, _MORE_RATES),
    "LRLCN": (LowRankLocalResNetModel(), _FROZEN, _RATES),
    "LRLCN, table": (LowRankLocalResNetModel(combiner="table"), _FROZEN, _RATES),
    "ViT 2 x 2": (WeatherViTModel(), _FROZEN, _VIT_RATES),
    "ViT 2 x 2, no positions": (WeatherViTModel(positions=False), _FROZEN, _VIT_RATES[1:2]),
    "SMoE, defaults": (_DEFAULT, StraightThrough(), _MORE_RATES),
    "SMoE, defaults, smooth start": (replace(_DEFAULT, gate_init="smooth"), StraightThrough(), _RATES[2:]),
    "SMoE, defaults, gate frozen at a smooth start": (replace(_DEFAULT, gate_init="smooth"), _FROZEN, _MORE_RATES[1:]),
}


def _at_rates(
    labels: Iterable[str], suffix: str = "", only: Iterable[float] = (), **data: Any
) -> Iterator[tuple[str, WeatherRecipe]]:
    recipe = WEATHER_RECIPES["weather/smoe"]
    training = replace(SMOE_TRAINING, schedule="cosine", warmup_epochs=1, max_epochs=4, plateau_patience=None)
    for label in labels:
        model, rule, rates = _AT_RATES[label]
        for rate in only or rates:
            made = replace(recipe, data=replace(recipe.data, **data), model=model, rule=rule, training=training)
            yield f"{label}{suffix}; {rate:g}", replace(made, optimizer=replace(WEATHER_OPTIMIZER, lr=rate))


_GIVEN = ", weekly climatology as input"
_RATE_ROWS = [
    *_at_rates(_AT_RATES),
    *_at_rates(("R&T, local affine",), _GIVEN, (12e-3, 48e-3), weekly_means=True),
    *_at_rates(("SMoE, defaults",), _GIVEN, (48e-3,), weekly_means=True),
]
# At rates that are good at three days.
_FIVE_DAYS = (
    "R&T ResNet",
    "R&T, local affine",
    "LRLCN",
    "SMoE, defaults",
    "SMoE, defaults, gate frozen at a smooth start",
)
_FIVE_DAYS_ROWS = [
    *_at_rates(_FIVE_DAYS, only=_RATES[1:], lead_hours=120),
    *_at_rates(("ViT 2 x 2",), only=(3e-3,), lead_hours=120),
]


# Few fields, filters and blocks, so that a run takes minutes on one core; years of the simulated atmosphere. Targets
# and constants are those of Rasp and Thuerey, with which the stored runs were made.
SIMULATED = WeatherData(
    train_years=(2001, 2006),
    validation_years=(2007, 2007),
    test_years=(2008, 2008),
    targets=("z_500", "t_850", "t2m"),
    constants=("lsm", "orography", "lat2d"),
    inputs=("z_500", "z_850", "t_850", "u_500", "u_850", "v_500", "v_850", "t2m"),
    context_hours=(6, 0),
    start_every_hours=12,
)
_SIMULATED_TRAINING = TrainingPlan(
    evaluation_batch_size=64, max_epochs=8, plateau_patience=2, min_lr=1e-6, early_stop_patience=8
)


def _small(recipe: WeatherRecipe) -> WeatherRecipe:
    model = recipe.model
    if isinstance(model, WeatherViTModel):
        model = replace(model, width=64, num_heads=4, depth=2, hidden=256)
    else:
        model = replace(model, filters=model.filters // 8, num_blocks=3, dropout=0.0)
    data = replace(SIMULATED, lead_hours=recipe.data.lead_hours, weekly_means=recipe.data.weekly_means)
    if recipe.data.pretrain_years is not None:
        data = replace(data, pretrain_years=(2001, 2007), pretrain_lead_hours=24)
    training = _SIMULATED_TRAINING
    if recipe.training.schedule == "cosine":
        given = recipe.training
        training = replace(training, schedule="cosine", warmup_epochs=given.warmup_epochs, max_epochs=given.max_epochs)
    return replace(recipe, data=data, model=model, training=training)


_METRICS = (ShownMetric("rmse_z_500", "Z500", decimals=0), ShownMetric("rmse_t_850", "T850", decimals=2))
_THREE_METRICS = (*_METRICS, ShownMetric("rmse_t2m", "T2m", decimals=2))


class WeatherExperiment(Experiment):
    """Forecasts of some days on the globe, on WeatherBench or a simulated atmosphere."""

    name = "weather"
    recipe_type = WeatherRecipe
    recipes = WEATHER_RECIPES
    tables = TableSet(
        name="weather",
        num_seeds=3,
        metrics=_METRICS,
        metric_text=(
            "Latitude-weighted root-mean-square errors (the root of the mean over all forecasts) of the geopotential "
            "at 500 hPa in m2/s2 and of the temperature at 850 hPa in K: mean ± standard deviation over the seeds."
        ),
        tables=(
            _models(3),
            _models(5),
            _table(
                "routing",
                "How gates of a deep net learn, in score order",
                "gate starts as; routing learns by",
                _ROUTING,
            ),
            _table(
                "rates",
                "Forecasts of 3 days after an epoch of warm-up and three of a cosine, by peak rate",
                "model; rate",
                _RATE_ROWS,
                metrics=_THREE_METRICS,
            ),
            _table(
                "rates-5-days",
                "Forecasts of 5 days, trained in the same way, by peak rate",
                "model; rate",
                _FIVE_DAYS_ROWS,
                lead_hours=120,
                metrics=_THREE_METRICS,
            ),
        ),
        scales=(
            Scale("paper", "WeatherBench at 5.625 degrees, trained on 1979-2015, tested on 2017-2018"),
            Scale(
                "small",
                "simulated atmosphere, trained on six years and tested on one; nets of 16 filters (2x wide: 32) and 3 "
                "blocks without dropout, ViT of width 64 and depth 2; 8 fields at two times; 8 epochs of 136 batches "
                "of 32",
                _small,
                kind="simulated",
            ),
        ),
        data_field="store",
    )

    def published(self, recipe_name: str) -> tuple[PublishedResult, ...]:
        return published_results(recipe_name, 72)


WEATHER = WeatherExperiment()
