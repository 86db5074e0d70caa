"""`smoe data check`: describes weather data, ensembles, images or a store, and says whether they can be used."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from smoe.cli.parse import parse

if TYPE_CHECKING:
    from rich.console import Console

    from smoe.paper.ens10.data.describe import TaskDescription
    from smoe.paper.imagenet.data.describe_folders import FolderDescription
    from smoe.paper.weather.data.describe import Description


@dataclass(frozen=True)
class Check:
    """Describes data and says whether the recipes can use them, for example: smoe data check ~/weatherbench.

    Exit code 0: they can; 1: they cannot, with the reasons.

    Attributes:
        path: a WeatherBench root or its folder of one resolution, the like of CMIP, a Zarr store of WeatherBench-2, or
            a folder of ENS-10, preprocessed or as downloaded, or what smoe data prepare weather wrote, or a folder of
            MNIST, Fashion-MNIST or CIFAR-10, or of ImageNet's class folders, train and val.
        kind: layout; auto recognises it.
        resolution: which grid, where there are several; 1.4deg is 1.40625deg.
        quick: read headers only: seconds, but no share of NaNs, and damage inside a file stays unseen.
    """

    path: tyro.conf.Positional[Path]
    kind: Literal["auto", "weatherbench", "cmip", "weatherbench2", "ens10", "images", "imagenet"] = "auto"
    resolution: Literal["5.625deg", "2.8125deg", "1.40625deg", "1.4deg"] | None = None
    quick: bool = False


def run(args: list[str]) -> int:
    """Parses, looks, prints, and returns 0 for usable data, 1 for others."""
    options = parse(Check, args, prog="smoe data check")

    from smoe.paper.weather.data.store_format import METADATA_FILE, PREPARATION_FILE

    if any((options.path / name).is_file() for name in (METADATA_FILE, PREPARATION_FILE)):
        return _check_store(options.path, options.quick)

    from smoe.paper.images.data.describe import has_images

    if options.kind == "images" or (options.kind == "auto" and has_images(options.path)):
        return _check_images(options.path)

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from smoe.paper.ens10.data.describe import describe_ens10
    from smoe.paper.ens10.data.open_ens10 import is_ens10
    from smoe.paper.imagenet.data.describe_folders import describe_folders, is_class_folders
    from smoe.paper.weather.data.describe import describe

    console = Console(highlight=False, soft_wrap=True, markup=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("opening files", total=None)

        def show(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what)

        if options.kind == "imagenet" or (options.kind == "auto" and is_class_folders(options.path)):
            folders = describe_folders(options.path, quick=options.quick, progress=show)
            return print_folders(options.path, folders, options.quick, console)
        if options.kind == "ens10" or (options.kind == "auto" and is_ens10(options.path)):
            tasks = describe_ens10(options.path, quick=options.quick, progress=show)
            return print_tasks(options.path, tasks, options.quick, console)
        found = describe(
            options.path, kind=options.kind, resolution=options.resolution, quick=options.quick, progress=show
        )
    print_description(found, options.quick, console)
    return 0 if found.is_usable else 1


def print_tasks(path: Path, tasks: list[TaskDescription], quick: bool, console: Console) -> int:
    """The tasks of ENS-10 one by one and the verdict last; returns 0 if one can be used."""
    for task in tasks:
        for fact in task.facts:
            console.print(f"{task.name}: {fact}")
        if task.problem is not None:
            console.print(f"{task.name}: problem: {task.problem}")
    usable = [task.name for task in tasks if task.problem is None]
    verdict = f"can be used for {', '.join(usable)}" if usable else "cannot be used"
    console.print(f"{path}: ENS-10, {verdict}" + (", as far as the headers tell" if quick else ""))
    return 0 if usable else 1


def print_folders(path: Path, found: FolderDescription, quick: bool, console: Console) -> int:
    """What the class folders hold, and the verdict last; returns 0 if they can be used."""
    for title, lines in (("", found.facts), ("remark: ", found.remarks), ("problem: ", found.problems)):
        for line in lines:
            console.print(f"{title}{line}")
    verdict = f"can be used: smoe train imagenet/smoe --data.root {path}" if found.is_usable else "cannot be used"
    console.print(f"{path}: class folders, {verdict}" + (", as far as the names tell" if quick else ""))
    return 0 if found.is_usable else 1


def _check_images(path: Path) -> int:
    from smoe.paper.images.data.catalogue import IMAGE_SETS
    from smoe.paper.images.data.describe import describe_images

    found = describe_images(path)
    if not found:
        known = ", ".join(image_set.title for image_set in IMAGE_SETS.values())
        sys.stdout.write(f"{path}: no files of {known}\n")
        return 1
    for description in found:
        for line in (*description.facts, *(f"problem: {text}" for text in description.problems)):
            sys.stdout.write(f"{description.folder}: {line}\n")
        verdict = "cannot be used"
        if description.is_published:
            verdict = f"the published files, can be used: smoe train {description.name}/smoe --data.root {path}"
        elif description.is_readable:
            verdict = f"can be used as {description.name} with --data.verify False only"
        sys.stdout.write(f"{description.folder}: {IMAGE_SETS[description.name].title}, {verdict}\n")
    return 0 if any(description.is_published for description in found) else 1


def _check_store(path: Path, quick: bool) -> int:
    from rich.console import Console
    from rich.progress import track

    from smoe.cli.store_report import describe_store
    from smoe.paper.weather.data.store import WeatherStore

    store = WeatherStore.open(path)
    sys.stdout.write(describe_store(store))
    if quick:
        return 0
    years = track(store.verify(), "comparing years", len(store.years()), console=Console(stderr=True), transient=True)
    for _ in years:
        pass
    sys.stdout.write("every byte is as it was written\n")
    return 0


def print_description(found: Description, quick: bool, console: Console) -> None:
    """The description for people: facts, a table of variables, what hinders, and the verdict last."""
    from rich.table import Table

    from smoe.paper.weather.data.series import describe_years

    rows, columns = found.grid.shape
    console.print(f"{found.path}: {found.kind}, {found.grid.name} ({rows} x {columns}), every {found.step_hours} h")
    console.print(f"years {describe_years(found.years)}, {found.num_times} times")
    table = Table()
    for header in ("variable", "name", "levels (hPa)", "years", "NaN"):
        table.add_column(header, no_wrap=header == "variable")
    for variable in found.variables:
        share = "not read" if variable.nan_share is None else _percent(variable.nan_share)
        levels = " ".join(map(str, variable.levels)) or "-"
        table.add_row(variable.name, variable.short_name, levels, describe_years(variable.years), share)
    console.print(table, soft_wrap=False)
    console.print(f"constants: {', '.join(found.constants) or 'none'}")
    for title, lines in (
        ("put right", found.notices), ("gap in time", found.gaps), ("remark", found.remarks),
        ("problem", found.problems),
    ):  # fmt: skip
        for line in lines:
            console.print(f"{title}: {line}")
    if found.missing:
        console.print(f"missing for the weather recipes: {', '.join(found.missing)}")
    verdict = "can be used" if found.is_usable else "cannot be used"
    console.print(f"{verdict} for the weather recipes" + (", as far as the headers tell" if quick else ""))


def _percent(share: float) -> str:
    return "0" if share == 0 else f"{100 * share:.2g} %"
