"""Reads the runs of a report, and compares those that can be compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from smoe.reports.run_report import RunReport
from smoe.training.run_directory import RunError


def read_and_compare(
    paths: Sequence[Path], read: Callable[[Path, str], RunReport], plain: Path | None = None
) -> list[RunReport]:
    """Reads runs, and adds the errors of a plain one to those of the others.

    Args:
        paths: Directories of runs, each once.
        read: Reads the run in a directory, with a label.
        plain: Run whose errors those of the others are compared with; if None, the first run without experts among
            `paths` that has the same data.

    Raises:
        RunError: If the same directory is given twice, or is none.
        ValueError: If the errors of `plain` cannot be compared with those of any run.
    """
    for path in paths:
        if not path.is_dir():
            raise RunError(f"{path} is not a directory: give the directory of a run")
        if [other.resolve() for other in paths].count(path.resolve()) > 1:
            raise RunError(f"{path} is given twice: give each run once")
    reports = [read(path, label) for path, label in zip(paths, labels_of(paths), strict=True)]
    reference = None if plain is None else read(plain, plain.resolve().name)
    candidates = [report for report in reports if report.is_plain] if reference is None else [reference]
    compared = [report if report.is_plain else with_plain(report, candidates) for report in reports]
    if reference is not None and all(new is old for new, old in zip(compared, reports, strict=True)):
        raise ValueError(
            f"the errors of {plain} cannot be compared with those of {', '.join(map(str, paths))}: they are of other "
            "data, or were not measured"
        )
    return compared


def labels_of(paths: Sequence[Path]) -> list[str]:
    """Returns a name for each directory: its own, with as many of its parents as tell them apart."""
    parts = [path.resolve().parts for path in paths]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def with_plain(report: RunReport, candidates: Sequence[RunReport]) -> RunReport:
    """Returns a run whose error maps know those of a plain net on the same data.

    Args:
        report: Run to compare.
        candidates: Runs of plain nets; the first one on the same data is used.

    Returns:
        The same object if there is nothing to compare with.
    """
    plain = next((other for other in candidates if other.identity == report.identity), None)
    known = {} if plain is None else {error.name: error.values for error in plain.error_maps}
    is_comparable = [error.plain is None and error.name in known for error in report.error_maps]
    if plain is None or not any(is_comparable):
        return report
    maps = tuple(
        replace(error, plain=known[error.name], plain_name=plain.label) if compares else error
        for error, compares in zip(report.error_maps, is_comparable, strict=True)
    )
    return replace(report, error_maps=maps)
