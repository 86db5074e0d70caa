"""`smoe fit` and `smoe predict`: fits a model to gridded data, and predicts by it."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from smoe.command_line import UsageError, parse, warnings_as_lines
from smoe.regression._options import RegressorOptions

if TYPE_CHECKING:
    from smoe.regression import ScoreTable


@dataclass(frozen=True)
class Fit:
    """Fits a model that predicts TARGETS from INPUTS and learns what to do where.

    Both are NetCDF, GRIB or Zarr: one file, a store, or a pattern of files in quotes. They are aligned by time. Fields
    lie on a grid, a UGRID mesh or a HEALPix sphere, which the files say. The folder of the output then holds the model,
    its scores and the record of the training.

    Commands to copy:
      smoe fit inputs.zarr targets.nc --train 1979:2015 --validate 2016 --test 2017:2018 -o runs/mine
      smoe fit forecasts.nc analyses.nc --net layer --objective gaussian -o runs/corrected
      smoe fit "sst_*.nc" "sst_*.nc" --lead "1 month" --static coast.nc -o runs/sst
    """

    inputs: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="INPUTS")]  # Inputs.
    targets: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="TARGETS")]  # Targets.
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])]  # Folder of the model.
    static: tuple[str, ...] = ()  # Further files of inputs, such as fields that do not depend on time.
    train: str | None = None  # Period to learn from; what the others leave if not given.
    validate: str | None = None  # Period that decides when to stop; the last part of the times if not given.
    # Period to score at the end; the validation period, which the model has seen, if not given.
    test: str | None = None
    input_variables: tuple[str, ...] = ()  # Variables of the inputs to use; all if not given.
    target_variables: tuple[str, ...] = ()  # Variables of the targets to predict; all if not given.
    # Arguments of `xarray.open_dataset` for the files, as KEY=VALUE, such as `group=forecast` or
    # `filter_by_keys={"typeOfLevel": "surface"}` for GRIB.
    open: Annotated[tuple[str, ...], tyro.conf.arg(metavar="KEY=VALUE ...")] = ()
    folds: int = 0  # Score all times first, in so many blocks, each by a model that was fitted without it; 0: do not.
    resume: bool = False  # Continue a fit that was stopped.
    json: bool = False  # Print the scores as one line of JSON, for scripts.
    # Options of the model.
    options: Annotated[RegressorOptions, tyro.conf.arg(name="")] = field(default_factory=RegressorOptions)


def run_fit(args: list[str]) -> int:
    options = parse(Fit, args, prog="smoe fit")

    from smoe.regression._saved import check_folder, is_model_folder
    from smoe.training.run_directory import RunDirectory

    if is_model_folder(options.output):
        # Those of a fit that was killed after it had saved the model.
        _remove_fields(options.output)
    check_folder(options.output)
    if (options.output / "training").exists() and not options.resume:
        raise UsageError(f"{options.output} holds a fit that was begun; add --resume, or choose another folder")
    with RunDirectory(options.output).lock(), warnings_as_lines():
        return _fit(options)


def _fit(options: Fit) -> int:
    from smoe.errors import Interrupted
    from smoe.regression import GridRegressor
    from smoe.regression._scores import write_scores

    inputs, open_options = [options.inputs, *options.static], read_open_options(options.open)
    model = GridRegressor(**asdict(options.options))
    variables: dict[str, Any] = {
        "input_variables": options.input_variables or None,
        "target_variables": options.target_variables or None,
    }
    if options.folds:
        table = model.cross_validate(inputs, options.targets, options.folds, open_options=open_options, **variables)
        _print_scores(table, options.json)
    try:
        model.fit(
            inputs,
            options.targets,
            train=options.train,
            validation=options.validate,
            test=options.test,
            **variables,
            open_options=open_options,
            run_dir=options.output,
            resume=options.resume,
        )
    except Interrupted as interruption:
        sys.stderr.write(f"{interruption}; the state is saved, continue with the same command and --resume\n")
        return 128 + interruption.signal_number
    which = "test" if options.test is not None else "validation"
    table = model.score(inputs, options.targets, period=model.fitted.period_of(which), open_options=open_options)
    write_scores(options.output, which, table)
    model.save(options.output)
    _remove_fields(options.output)
    _print_scores(table, options.json)
    if not options.json:
        sys.stdout.write(f"model: {options.output}\n")
    return 0


def _print_scores(table: ScoreTable, is_json: bool) -> None:
    sys.stdout.write(f"{json.dumps(table.to_plain()) if is_json else table}\n")


def read_open_options(given: Sequence[str]) -> dict[str, Any]:
    """Arguments such as `group=forecast` and `decode_times=false`; values are JSON, or texts."""
    options: dict[str, Any] = {}
    for text in given:
        key, sign, value = text.partition("=")
        if not sign or not key.isidentifier():
            raise UsageError(f"--open takes KEY=VALUE, such as group=forecast, got {text!r}")
        try:
            options[key] = json.loads(value)
        except json.JSONDecodeError:
            options[key] = value
    return options


def _remove_fields(output: Path) -> None:
    """Removes the fields that were streamed, which a model that is saved needs no more."""
    shutil.rmtree(output / "fields", ignore_errors=True)


@dataclass(frozen=True)
class Predict:
    """Predicts from new inputs and writes CF-1.11 NetCDF or Zarr with the names, units and attributes of the targets.

    Commands to copy:
      smoe predict runs/mine new.nc -o predicted.nc
      smoe predict runs/mine "new_*.nc" -o predicted.zarr
    """

    # Folder that `smoe fit` wrote, or `GridRegressor.save`.
    model: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="MODEL")]
    # New inputs: variables, units and grid must be those of the fit.
    inputs: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="INPUTS")]
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])]  # File that ends with .nc, or folder that ends with .zarr.
    # Arguments of `xarray.open_dataset` for the files, as KEY=VALUE.
    open: Annotated[tuple[str, ...], tyro.conf.arg(metavar="KEY=VALUE ...")] = ()
    overwrite: bool = False  # Replace an output that exists.


def run_predict(args: list[str]) -> int:
    options = parse(Predict, args, prog="smoe predict")

    from smoe.gridded import check_output
    from smoe.regression import GridRegressor
    from smoe.regression._regressor import write_predictions

    check_output(options.output, overwrite=options.overwrite)
    model = GridRegressor.load(options.model)
    with warnings_as_lines():
        open_options = read_open_options(options.open)
        write_predictions(model, options.inputs, options.output, overwrite=options.overwrite, open_options=open_options)
    sys.stdout.write(f"{options.output}\n")
    return 0
