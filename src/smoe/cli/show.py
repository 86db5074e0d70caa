"""`smoe show`: draws what a run learned."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from smoe.cli.parse import parse


@dataclass(frozen=True)
class Show:
    """Draws a run's accuracy curve and its routing map with the experts into RUN/pictures.

    Attributes:
        run: run directory.
        checkpoint: the best weights by the validation split, or the last ones.
    """

    run: tyro.conf.Positional[Path]
    checkpoint: Literal["best", "last"] = "best"


def run(args: list[str]) -> int:
    """Parses, draws, and prints the pictures' paths."""
    options = parse(Show, args, prog="smoe show")

    from smoe.experiments.heat.pictures import draw_run
    from smoe.experiments.runs import open_run

    for picture in draw_run(open_run(options.run, options.checkpoint)):
        sys.stdout.write(f"{picture}\n")
    return 0
