"""`smoe show`: draws what a run learned."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from smoe.cli.main import UsageError
from smoe.cli.parse import parse

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Show:
    """Draws what a run learned into RUN/pictures.

    A heat run: its accuracy curve, and its routing map with the experts. A weather run: its scores by epoch, forecasts
    beside the truth, and the routing on the globe, one picture for each gate. A run that corrects ensembles: its score
    by epoch, rank histogram, reliability and spread beside the raw ensemble's, and maps of the CRPS. A run that
    classifies images: its accuracy by epoch, which classes it takes for which, and the routing over the mean image of
    each class.

    smoe show runs/first

    smoe show runs/mnist-smoe-0

    smoe show runs/weather --init-times 2018-01-15T00 2018-07-15T00

    smoe show runs/weather --split validation --layers blocks.0

    Attributes:
        run: run directory.
        checkpoint: the best weights by the validation split, or the last ones.
        split: whose forecasts are drawn, or images classified; heat runs draw none.
        init_times: of a weather run: when the forecasts to draw start, such as 2018-01-15T00; one from the middle of
            the split if not given.
        layers: of a weather run: draw the routing of layers with this text in their name only.
    """

    run: tyro.conf.Positional[Path]
    checkpoint: Literal["best", "last"] = "best"
    split: Literal["test", "validation"] = "test"
    init_times: tuple[str, ...] = ()
    layers: str = ""


def run(args: list[str]) -> int:
    """Parses, draws, and prints the pictures' paths."""
    options = parse(Show, args, prog="smoe show")
    times = [_parse_time(text) for text in options.init_times]

    from smoe.experiments.runs import open_run, read_recipe
    from smoe.paper.ens10.recipes import EnsembleRecipe
    from smoe.paper.imagenet.recipes import ImageNetRecipe
    from smoe.paper.images.recipes import ImageRecipe
    from smoe.paper.weather.recipes import WeatherRecipe
    from smoe.training.run_directory import RunDirectory

    name, recipe = read_recipe(RunDirectory(options.run))
    if (times or options.layers) and not isinstance(recipe, WeatherRecipe):
        raise UsageError(f"--init-times and --layers are for weather runs; {options.run} is a run of {name}")
    if isinstance(recipe, EnsembleRecipe):
        from smoe.paper.ens10.pictures import draw_run as draw_ensemble_run

        opened = open_run(options.run, options.checkpoint, (options.split,), say=_say)
        pictures = draw_ensemble_run(opened, options.split)
    elif isinstance(recipe, ImageRecipe):
        from smoe.paper.images.pictures import draw_run as draw_image_run

        pictures = draw_image_run(open_run(options.run, options.checkpoint, (options.split,), say=_say), options.split)
    elif isinstance(recipe, ImageNetRecipe):
        from smoe.paper.imagenet.pictures import draw_run as draw_imagenet_run

        opened = open_run(options.run, options.checkpoint, (options.split,), say=_say)
        pictures = draw_imagenet_run(opened, options.split)
    elif isinstance(recipe, WeatherRecipe):
        from smoe.paper.weather.pictures import draw_run as draw_weather_run

        opened = open_run(options.run, options.checkpoint, (options.split,), say=_say)
        pictures = draw_weather_run(opened, options.split, times, options.layers)
    else:
        from smoe.paper.heat.pictures import draw_run

        pictures = draw_run(open_run(options.run, options.checkpoint))
    for picture in pictures:
        sys.stdout.write(f"{picture}\n")
    return 0


def _parse_time(text: str) -> np.datetime64:
    import numpy as np

    try:
        return np.datetime64(text, "h")
    except ValueError:
        raise UsageError(f"{text!r} is no time; write it as 2018-01-15T00") from None


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
