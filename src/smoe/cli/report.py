"""`smoe report`: writes a page about one fitted model or several."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import tyro

from smoe.command_line import UsageError, parse

if TYPE_CHECKING:
    from smoe.reports.read_fit import FitData
    from smoe.reports.run_report import RunReport


@dataclass(frozen=True)
class FitPlaces:
    """Where the data of a fit are, if they are not where it found them."""

    inputs: tuple[str, ...] = ()  # Inputs: files, in the order of the fit.
    targets: str | None = None  # Targets.
    open: tuple[str, ...] = ()  # Arguments of `xarray.open_dataset` for the files, as KEY=VALUE.


@dataclass(frozen=True)
class Report:
    """Writes a page about one fitted model or several, as one HTML file that needs no network.

    It shows scores beside those of baselines, curves, the routing, expert use, filters, errors, and how the model was
    made.

    Commands to copy:
      smoe report runs/mine --data.inputs inputs.nc --data.targets targets.nc -o mine.html
      smoe report runs/mine runs/other -o comparison.html
    """

    # Models that smoe fit made.
    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN [RUN ...]")]
    # File to write; report.html in the directory of a single run if not given.
    output: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    without_data: bool = False  # Read no samples: no error maps.
    # Places of data that were moved, or lie outside the run and the working directory.
    data: FitPlaces = field(default_factory=FitPlaces)


R = TypeVar("R", bound=Report)


def run(args: list[str]) -> int:
    options = parse_report(Report, args)

    from smoe.reports.read_fit import read_fit

    data = fit_data(options)
    return write_report(options, lambda path, label: read_fit(path, label, data.get(path), _notify))


def parse_report(kind: type[R], args: list[str]) -> R:
    options = parse(kind, args, prog="smoe report") if args else None
    if options is None or not options.runs:
        raise UsageError("give a run directory (see smoe report --help)")
    if options.output is None and len(options.runs) > 1:
        raise UsageError("name the file of a report of several runs: -o report.html")
    if options.output is not None and options.output.is_dir():
        raise UsageError(f"{options.output} is a directory: name a file, such as {options.output / 'report.html'}")
    return options


def write_report(options: Report, read: Callable[[Path, str], RunReport]) -> int:
    from smoe.reports._page import write_page
    from smoe.reports.read_fit import read_and_compare

    output = options.output or next(iter(options.runs)) / "report.html"
    size = write_page(read_and_compare(options.runs, read), output)
    sys.stdout.write(f"{output} ({size / 1e6:.2f} MB)\n")
    return 0


def fit_data(options: Report) -> Mapping[Path, FitData]:
    """Data of fitted models: those that were given, or those of the recorded command, if a run may name them."""
    from smoe.cli.fit import read_open_options
    from smoe.regression._saved import is_model_folder
    from smoe.reports.read_fit import FitData

    data = options.data
    if bool(data.inputs) != (data.targets is not None):
        raise UsageError("give --data.inputs and --data.targets together")
    found: dict[Path, FitData] = {}
    for path in options.runs:
        if options.without_data or not is_model_folder(path):
            continue
        if data.targets is not None:
            found[path] = FitData(data.inputs, data.targets, read_open_options(data.open))
            continue
        recorded = _recorded_data(path)
        if recorded is not None:
            found[path] = recorded
        else:
            _notify(f"{path}: no error maps: name the data of the fit by --data.inputs FILE and --data.targets FILE")
    return found


def _recorded_data(path: Path) -> FitData | None:
    from smoe.cli.fit import Fit, read_open_options
    from smoe.reports.read_fit import FitData
    from smoe.training.run_directory import RunDirectory

    command: Any = RunDirectory(path / "training").read_environment().get("command")
    if not isinstance(command, list) or not command or command[0] != "fit":
        return None
    try:
        fit = parse(Fit, [str(word) for word in command[1:]], prog="smoe fit")
        options = read_open_options(fit.open)
    except UsageError:
        return None
    # A run of others chooses no reader, and none of its arguments.
    if not options.keys() <= {"group", "decode_times", "filter_by_keys"}:
        return None
    inputs = (fit.inputs, *fit.static)
    for name in (*inputs, fit.targets):
        files = glob(name) if "*" in name else [name]
        if not files or not all(Path(file).exists() and RunDirectory(path).allows_path(file) for file in files):
            return None
    return FitData(inputs, fit.targets, options)


def _notify(text: str) -> None:
    sys.stderr.write(f"{text}\n")
