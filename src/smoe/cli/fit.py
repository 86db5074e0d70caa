"""`smoe fit`: fits a location-aware model to a user's own gridded data."""

from __future__ import annotations

import shutil
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from smoe.command_line import UsageError, parse, warnings_as_lines
from smoe.regression._options import RegressorOptions


@dataclass(frozen=True)
class Fit:
    """Fits a model that predicts TARGETS from INPUTS and learns what to do where.

    Both are NetCDF, GRIB or Zarr: one file, a store, or a pattern of files in quotes. They are aligned by time. Fields
    lie on a grid, a UGRID mesh or a HEALPix sphere, which the files say. The folder of the output then holds the model,
    its scores and the record of the training.

    smoe fit inputs.zarr targets.nc --train 1979:2015 --validate 2016 --test 2017:2018 -o runs/mine

    smoe fit forecasts.nc analyses.nc --net layer --objective gaussian -o runs/corrected

    smoe fit "sst_*.nc" "sst_*.nc" --lead "1 month" --static coast.nc -o runs/sst

    Attributes:
        inputs: Inputs.
        targets: Targets.
        output: Folder of the model.
        static: Further files of inputs, such as fields that do not depend on time.
        train: Period to learn from; what the others leave if not given.
        validate: Period that decides when to stop; the last part of the times if not given.
        test: Period to score at the end; the validation period, which the model has seen, if not given.
        input_variables: Variables of the inputs to use; all if not given.
        target_variables: Variables of the targets to predict; all if not given.
        resume: Continue a fit that was stopped.
        options: Options of the model.
    """

    inputs: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="INPUTS")]
    targets: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="TARGETS")]
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    static: tuple[str, ...] = ()
    train: str | None = None
    validate: str | None = None
    test: str | None = None
    input_variables: tuple[str, ...] = ()
    target_variables: tuple[str, ...] = ()
    resume: bool = False
    options: Annotated[RegressorOptions, tyro.conf.arg(name="")] = field(default_factory=RegressorOptions)


def run(args: list[str]) -> int:
    """Parses, fits, saves and scores."""
    options = parse(Fit, args, prog="smoe fit")

    from smoe.regression._model_files import check_folder, is_model_folder
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
    from smoe._signals import Interrupted
    from smoe.regression import GridRegressor
    from smoe.regression._scores import write_scores

    inputs = [options.inputs, *options.static]
    model = GridRegressor(**asdict(options.options))
    try:
        model.fit(
            inputs,
            options.targets,
            train=options.train,
            validation=options.validate,
            test=options.test,
            input_variables=options.input_variables or None,
            target_variables=options.target_variables or None,
            run_dir=options.output,
            resume=options.resume,
        )
    except Interrupted as interruption:
        sys.stderr.write(f"{interruption}; the state is saved, continue with the same command and --resume\n")
        return 128 + interruption.signal_number
    which = "test" if options.test is not None else "validation"
    table = model.score(inputs, options.targets, period=model.fitted.period_of(which))
    write_scores(options.output, which, table)
    model.save(options.output)
    _remove_fields(options.output)
    sys.stdout.write(f"{table}\nmodel: {options.output}\n")
    return 0


def _remove_fields(output: Path) -> None:
    """Removes the fields that were streamed, which a model that is saved needs no more."""
    shutil.rmtree(output / "fields", ignore_errors=True)
