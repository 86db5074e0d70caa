"""`smoe report`: writes a page about one run or several."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from smoe.command_line import UsageError, parse

if TYPE_CHECKING:
    from smoe.reports.read_fit import FitData


@dataclass(frozen=True)
class ReportData:
    """Where data are, if they are not where the runs found them.

    Attributes:
        store: Store of weather or ensemble fields.
        root: Folder of images.
        cache_dir: Folder of simulated data.
        region_map: Map of regions.
        inputs: Inputs of a model that smoe fit made: files, in the order of the fit.
        targets: Targets of such a model.
    """

    store: Path | None = None
    root: Path | None = None
    cache_dir: Path | None = None
    region_map: Path | None = None
    inputs: tuple[str, ...] = ()
    targets: str | None = None


@dataclass(frozen=True)
class Report:
    """Writes a page about one run or several, as one HTML file that needs no network.

    It shows scores beside those of baselines and of the paper, curves, the routing, expert use, filters, errors, and
    how the run was made.

    smoe report runs/first -o report.html

    smoe report runs/smoe-0 runs/smoe-1 runs/conv-0 -o comparison.html

    smoe report runs/mine --data.inputs inputs.nc --data.targets targets.nc -o mine.html

    Attributes:
        runs: Run directories, and models that smoe fit made.
        output: File to write; report.html in the directory of a single run if not given.
        plain: Run of a plain net, whose errors those of the others are compared with; the first run without experts of
            the same data if not given.
        split: Split whose errors are shown.
        checkpoint: The best weights by the validation split, or the last ones.
        without_data: Read no samples: no error maps, baselines or classes.
        data: Places of data that were moved, or lie outside the run and the working directory.
    """

    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN [RUN ...]")]
    output: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    plain: Path | None = None
    split: Literal["test", "validation"] = "test"
    checkpoint: Literal["best", "last"] = "best"
    without_data: bool = False
    data: ReportData = field(default_factory=ReportData)


def run(args: list[str]) -> int:
    """Parses, reads the runs and writes the page."""
    if not args:
        raise UsageError("give a run directory (see smoe report --help)")
    options = parse(Report, args, prog="smoe report")
    if not options.runs:
        raise UsageError("give a run directory (see smoe report --help)")
    if options.output is None and len(options.runs) > 1:
        raise UsageError("name the file of a report of several runs: -o report.html")
    output = options.output or next(iter(options.runs)) / "report.html"
    if output.is_dir():
        raise UsageError(f"{output} is a directory: name a file, such as {output / 'report.html'}")

    from smoe.reports.page import write_page
    from smoe.reports.read_run import ReadOptions
    from smoe.reports.read_runs import read_runs

    moved = {place: getattr(options.data, place) for place in ("store", "root", "cache_dir", "region_map")}
    reading = ReadOptions(
        split=None if options.without_data else options.split,
        checkpoint=options.checkpoint,
        data={place: value for place, value in moved.items() if value is not None},
    )
    paths = [*options.runs, *([] if options.plain is None else [options.plain])]
    fit_data = {} if options.without_data else _fit_data(paths, options.data)
    reports = read_runs(options.runs, reading, fit_data=fit_data, plain=options.plain, notify=_notify)
    size = write_page(reports, output)
    sys.stdout.write(f"{output} ({size / 1e6:.2f} MB)\n")
    return 0


def _fit_data(paths: list[Path], data: ReportData) -> Mapping[Path, FitData]:
    """Data of fitted models: those that were given, or those of the recorded command, if a run may name them."""
    from smoe.regression.model_files import is_model_folder
    from smoe.reports.read_fit import FitData

    if bool(data.inputs) != (data.targets is not None):
        raise UsageError("give --data.inputs and --data.targets together")
    found: dict[Path, FitData] = {}
    for path in paths:
        if not is_model_folder(path):
            continue
        if data.targets is not None:
            found[path] = FitData(data.inputs, data.targets)
            continue
        recorded = _recorded_data(path)
        if recorded is not None:
            found[path] = recorded
        else:
            _notify(f"{path}: no error maps: name the data of the fit by --data.inputs FILE and --data.targets FILE")
    return found


def _recorded_data(path: Path) -> FitData | None:
    from smoe.cli.fit import Fit
    from smoe.reports.read_fit import FitData
    from smoe.reports.read_run import read_environment
    from smoe.training.run_directory import RunDirectory

    command: Any = read_environment(RunDirectory(path / "training")).get("command")
    if not isinstance(command, list) or not command or command[0] != "fit":
        return None
    try:
        fit = parse(Fit, [str(word) for word in command[1:]], prog="smoe fit")
    except UsageError:
        return None
    inputs = (fit.inputs, *fit.static)
    for name in (*inputs, fit.targets):
        files = glob(name) if "*" in name else [name]
        if not files or not all(Path(file).exists() and RunDirectory(path).may_name(file) for file in files):
            return None
    return FitData(inputs, fit.targets)


def _notify(text: str) -> None:
    sys.stderr.write(f"{text}\n")
