"""Recipes of weather forecasts with all their options, and what is published. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Literal

from smoe.options import Combiner
from smoe.rules import Frozen, RoutingClassification, Rule
from smoe.training.plan import TrainingPlan
from smoe_paper.experiments.recipe import Adam, GateOptions, Recipe, SgdMomentum, check_year_ranges


@dataclass(frozen=True)
class _ResNetSize:
    """Common options of all variants of the ResNet.

    Attributes:
        filters: Number of filters of every convolution but the last; 256 is the paper's `2x wide`.
        num_blocks: Number of residual blocks of two convolutions each.
        dropout: Dropout probability after every convolution but the last.
        positive: End with a ReLU, for precipitation.
    """

    filters: int = 128
    num_blocks: int = 19
    dropout: float = 0.1
    positive: bool = False


@dataclass(frozen=True)
class _Gate(GateOptions):
    """Options of the gate of SMoE layers, with a prior.

    Attributes:
        prior: `land_sea` starts the gate with land preferring one half of the experts and sea the other.
        prior_strength: Strength of the prior in units of the largest random score; from 2 on, the prior always wins.
    """

    prior: Literal["none", "land_sea"] = "none"
    prior_strength: float = 2.0


@dataclass(frozen=True)
class ResNetModel(_ResNetSize):
    """The ResNet of Rasp and Thuerey."""


@dataclass(frozen=True)
class LocatedResNetModel(_ResNetSize):
    """The ResNet with simple kinds of position information, as baselines.

    Attributes:
        local_affine: Multiply each output of the blocks' convolutions by a learned number at each pixel, and add
            another.
        learned_channels: Number of learned fields that are appended to the input.
    """

    local_affine: bool = False
    learned_channels: int = 0


@dataclass(frozen=True)
class LowRankLocalResNetModel(_ResNetSize):
    """The ResNet with the 3x3 convolutions of its blocks as low-rank locally connected layers (LRLCN).

    Attributes:
        spatial_rank: Number of basis filters; the paper gives none. With 2, there are as many filters as experts.
        combiner: Network that computes each pixel's mixture; the paper's text names `input` for heat.
    """

    spatial_rank: int = 2
    combiner: Combiner = "input"


@dataclass(frozen=True)
class AddedSpatialMoEModel(_Gate, _ResNetSize):
    """The ResNet with one SMoE layer added.

    Attributes:
        position: `first` is after the 7x7 convolution, as a separate block (SMoE, LeakyReLU, batch norm, dropout).
            `last` is such a block after the last residual block, with the same number of filters.
            `output` is after the output convolution and selects as many experts as there are fields to forecast.
    """

    position: Literal["first", "last", "output"] = "first"


@dataclass(frozen=True)
class SpatialMoEResNetModel(_Gate, _ResNetSize):
    """The ResNet with the 3x3 convolutions of its blocks as SMoE layers.

    Attributes:
        share_gates: Use one gate for all layers.
    """

    share_gates: bool = True


@dataclass(frozen=True)
class WeatherViTModel:
    """A vision transformer from fields to fields.

    Attributes:
        patch_size: Rows and columns of a patch, in pixels.
        width: Number of features of a token.
        num_heads: Number of attention heads.
        depth: Number of blocks.
        hidden: Number of features inside the MLPs.
    """

    patch_size: int = 2
    width: int = 1024
    num_heads: int = 8
    depth: int = 4
    hidden: int = 4096


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
        lead_hours: Lead of the forecasts.
        start_every_hours: Hours between the starts in training and validation; None for every step of the store.
        test_every_hours: Hours between the starts in the test.
        skip_hours: Hours left out at the beginning of the training years.
    """

    store: Path | None = None
    train_years: tuple[int, int] = (1979, 2015)
    validation_years: tuple[int, int] = (2016, 2016)
    test_years: tuple[int, int] = (2017, 2018)
    targets: tuple[str, ...] = ("z_500", "t_850")
    inputs: tuple[str, ...] | None = None
    constants: tuple[str, ...] | None = None
    context_hours: tuple[int, ...] = (12, 6, 0)
    lead_hours: int = 72
    start_every_hours: int | None = None
    test_every_hours: int = 6
    # As Rasp and Thuerey, because radiation and precipitation have gaps there.
    skip_hours: int = 24

    def __post_init__(self) -> None:
        check_year_ranges(self)


# The paper's appendix: divide the learning rate by 10 when the validation loss has not improved for two epochs: a
# patience of 1 in torch.
SMOE_TRAINING = TrainingPlan(
    batch_size=64,
    evaluation_batch_size=64,
    max_epochs=100,
    monitor="loss",
    monitor_mode="min",
    plateau_patience=1,
    plateau_factor=0.1,
    min_lr=1e-6,
    early_stop_patience=5,
    stop_at=None,
)
# Rasp and Thuerey's configurations, with their targets and constants.
RASP_TARGETS, RASP_CONSTANTS = ("z_500", "t_850", "t2m"), ("lsm", "orography", "lat2d")
RASP_TRAINING = replace(SMOE_TRAINING, batch_size=32, plateau_factor=0.2, min_lr=1e-5, min_delta=1e-4)
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
}

# Each row of the paper's table, trained as in the paper's appendix and as in Rasp and Thuerey's
# configurations.
WEATHER_RECIPES = {
    **{f"weather/{name}": recipe for name, recipe in _ROWS.items()},
    **{
        f"weather/{name}-rasp": replace(
            recipe,
            data=WeatherData(targets=RASP_TARGETS, constants=RASP_CONSTANTS),
            optimizer=RASP_OPTIMIZER,
            training=RASP_TRAINING,
        )
        for name, recipe in _ROWS.items()
    },
}


PAPER = "paper"
WEATHERBENCH = "WeatherBench"
PUBLISHED_DATA = "ERA5, 2017-2018"
LEADS_OF_TABLES = (72, 120)


@dataclass(frozen=True)
class PublishedScore:
    """One row of a published table.

    Attributes:
        model: Name of the model in the publication.
        source: Publication and table.
        rmse: RMSE by channel and lead in hours.
        spread: Standard deviation over three runs, by channel and lead, if printed.
        recipe: Recipe of this library that trains the model.
    """

    model: str
    source: str
    rmse: dict[tuple[str, int], float]
    spread: dict[tuple[str, int], float] = field(default_factory=dict)
    recipe: str | None = None


def _paper(
    model: str,
    z: tuple[tuple[float, float], tuple[float, float]],
    t: tuple[tuple[float, float], tuple[float, float]],
    recipe: str | None = None,
) -> PublishedScore:
    cells = {
        (channel, lead): cell
        for channel, cells in (("z_500", z), ("t_850", t))
        for lead, cell in zip(LEADS_OF_TABLES, cells, strict=True)
    }
    means, spreads = ({key: cell[number] for key, cell in cells.items()} for number in range(2))
    return PublishedScore(model, PAPER, means, spreads, recipe)


def _weatherbench(model: str, **scores: tuple[float, float]) -> PublishedScore:
    rmse = {
        (channel, lead): value
        for channel, values in scores.items()
        for lead, value in zip(LEADS_OF_TABLES, values, strict=True)
    }
    return PublishedScore(model, WEATHERBENCH, rmse)


PUBLISHED = (
    _paper("Rasp and Thuerey", ((316, 2.4), (563, 3.1)), ((1.80, 0.02), (2.84, 0.03)), "weather/rt"),
    _paper("Rasp and Thuerey, 2x wide", ((310, 2.0), (555, 2.8)), ((1.76, 0.03), (2.78, 0.01)), "weather/rt-wide"),
    _paper("LRLCN", ((290, 1.4), (549, 1.9)), ((1.73, 0.03), (2.79, 0.01)), "weather/lrlcn"),
    _paper("ViT (2x2)", ((438, 2.8), (638, 3.1)), ((2.24, 0.04), (2.88, 0.03)), "weather/vit"),
    _paper("SMoE after first layer", ((305, 1.9), (556, 2.2)), ((1.77, 0.01), (2.80, 0.03)), "weather/smoe-first"),
    _paper("last layer SMoE", ((298, 2.6), (553, 3.2)), ((1.73, 0.02), (2.78, 0.04)), "weather/smoe-last"),
    _paper("3x3 convolutions to SMoE", ((278, 2.0), (530, 1.8)), ((1.69, 0.01), (2.65, 0.01)), "weather/smoe"),
    _paper("SMoE, gate prior", ((270, 1.9), (525, 2.0)), ((1.66, 0.02), (2.60, 0.01)), "weather/smoe-prior"),
    _paper("SMoE, random fixed gate", ((328, 3.7), (572, 4.1)), ((1.89, 0.08), (2.96, 0.05)), "weather/smoe-random"),
    _paper("Rasp and Thuerey, pretrained", ((267, 1.8), (500, 2.4)), ((1.66, 0.03), (2.43, 0.02))),
    _paper("SMoE, pretrained", ((253, 2.1), (488, 1.7)), ((1.57, 0.02), (2.34, 0.02))),
    _paper("SMoE, pretrained, more ERA5", ((232, 1.5), (440, 1.2)), ((1.46, 0.02), (2.19, 0.01))),
    _paper("SMoE, pretrained, more ERA5, 1.4 degrees", ((198, 1.8), (382, 2.0)), ((1.42, 0.00), (2.06, 0.02))),
    _weatherbench("persistence", z_500=(936, 1033), t_850=(4.29, 4.56), t2m=(3.00, 3.27)),
    _weatherbench("climatology", z_500=(1075, 1075), t_850=(5.51, 5.51), t2m=(6.07, 6.07)),
    _weatherbench("weekly climatology", z_500=(816, 816), t_850=(3.50, 3.50), t2m=(3.19, 3.19)),
    _weatherbench("linear regression, direct", z_500=(693, 783), t_850=(3.19, 3.44), t2m=(2.39, 2.60)),
    _weatherbench("linear regression, iterative", z_500=(718, 810), t_850=(3.17, 3.48)),
    _weatherbench("CNN, direct", z_500=(626, 757), t_850=(2.87, 3.37)),
    _weatherbench("CNN, iterative", z_500=(1114, 1559), t_850=(4.48, 9.69)),
    _weatherbench("IFS T42", z_500=(489, 743), t_850=(3.09, 3.83), t2m=(3.21, 3.69)),
    _weatherbench("IFS T63", z_500=(268, 463), t_850=(1.85, 2.52), t2m=(2.04, 2.44)),
    _weatherbench("operational IFS", z_500=(154, 334), t_850=(1.36, 2.03), t2m=(1.35, 1.77)),
    _weatherbench("Weyn 2020, iterative", z_500=(373, 611), t_850=(1.98, 2.87)),
    _weatherbench("Clare 2021", z_500=(375, 627), t_850=(2.11, 2.91)),
    # The best for each lead: the direct network for three days, the continuous one for five.
    _weatherbench("Rasp and Thuerey 2021, pretrained", z_500=(268, 499), t_850=(1.65, 2.41)),
)
