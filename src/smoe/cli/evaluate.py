"""`smoe evaluate`: scores a trained run."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from smoe.cli.parse import parse


@dataclass(frozen=True)
class Evaluate:
    """Scores a trained run, for example: smoe evaluate runs/first --split validation.

    Attributes:
        run: run directory.
        split: data to score on.
        checkpoint: the best weights by the validation split, or the last ones.
    """

    run: tyro.conf.Positional[Path]
    split: Literal["test", "validation", "train"] = "test"
    checkpoint: Literal["best", "last"] = "best"


def run(args: list[str]) -> int:
    """Parses, evaluates, and prints a table."""
    options = parse(Evaluate, args, prog="smoe evaluate")

    from smoe.cli.report import print_result
    from smoe.experiments.runs import open_run

    opened = open_run(options.run, options.checkpoint, (options.split,), say=_say)
    values = opened.evaluate(options.split)
    print_result(opened.name, options.split, values, options.run)
    return 0


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
