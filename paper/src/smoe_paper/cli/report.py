"""`smoe report` of runs and of fitted models."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from smoe.cli.report import FitPlaces, Report, fit_data, parse_report, write_report


@dataclass(frozen=True)
class RunPlaces(FitPlaces):
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


@dataclass(frozen=True)
class RunReports(Report):
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

    split: Literal["test", "validation"] = "test"
    checkpoint: Literal["best", "last"] = "best"
    data: RunPlaces = field(default_factory=RunPlaces)


def run(args: list[str]) -> int:
    """Parses, reads the runs and writes the page."""
    options = parse_report(RunReports, args)

    from smoe.regression._model_files import is_model_folder
    from smoe.reports.read_fit import read_fit
    from smoe.reports.run_report import RunReport
    from smoe_paper.experiments.read_run import ReadOptions, read_run

    moved = {place: getattr(options.data, place) for place in ("store", "root", "cache_dir", "region_map")}
    reading = ReadOptions(
        split=None if options.without_data else options.split,
        checkpoint=options.checkpoint,
        data={place: value for place, value in moved.items() if value is not None},
    )
    data = fit_data(options)

    def read(path: Path, label: str) -> RunReport:
        if is_model_folder(path):
            return read_fit(path, label, data.get(path), _notify)
        return read_run(path, label, reading, _notify)

    return write_report(options, read)


def _notify(text: str) -> None:
    sys.stderr.write(f"{text}\n")
