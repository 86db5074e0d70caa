"""`smoe predict`: predicts from new data by a model that `smoe fit` made."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from smoe.command_line import parse, warnings_as_lines


@dataclass(frozen=True)
class Predict:
    """Predicts from new inputs and writes CF-1.11 NetCDF or Zarr with the names, units and attributes of the targets.

    smoe predict runs/mine new.nc -o predicted.nc

    smoe predict runs/mine "new_*.nc" -o predicted.nc --per-year

    Attributes:
        model: Folder that `smoe fit` wrote, or `GridRegressor.save`.
        inputs: New inputs: variables, units and grid must be those of the fit.
        output: File that ends with .nc, or folder that ends with .zarr.
        per_year: Write one file for each year.
        overwrite: Replace an output that exists.
    """

    model: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="MODEL")]
    inputs: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="INPUTS")]
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    per_year: bool = False
    overwrite: bool = False


def run(args: list[str]) -> int:
    """Parses, predicts, and prints the path."""
    options = parse(Predict, args, prog="smoe predict")

    from smoe.gridded._output import check_output
    from smoe.regression import GridRegressor
    from smoe.regression._regressor import write_predictions

    if not options.per_year:
        check_output(options.output, overwrite=options.overwrite)
    model = GridRegressor.load(options.model)
    with warnings_as_lines():
        paths = write_predictions(
            model, options.inputs, options.output, per_year=options.per_year, overwrite=options.overwrite
        )
    for path in paths:
        sys.stdout.write(f"{path}\n")
    return 0
