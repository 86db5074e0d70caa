"""Published scores on ERA5, 2017-2018, as data: the paper's table of WeatherBench results, and WeatherBench's own rows.

All are latitude-weighted RMSE with the time mean inside the root, of geopotential at 500 hPa in m2 s-2, temperature at
850 hPa in K, and temperature at 2 m in K. Imports nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

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
