"""`smoe data check` for weather data, or for a store that was prepared from them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from smoe.command_line import parse

if TYPE_CHECKING:
    from rich.console import Console

    from smoe_paper.weather.data.describe import Description


@dataclass(frozen=True)
class Check:
    """Describes weather data and checks whether the recipes can use them.

    The exit code is 0 if they can be used and 1 otherwise, with the reasons.

    Attributes:
        path: Root of WeatherBench or its folder of one resolution, a similar folder of CMIP, a Zarr store of
            WeatherBench-2, or a store that `smoe data prepare weather` wrote.
        kind: Layout of the data; `auto` recognises it.
        resolution: Grid to check, if there are several; 1.4deg is 1.40625deg.
        quick: Read only headers. This takes seconds, but gives no share of NaNs and does not find damage inside files.
    """

    path: tyro.conf.Positional[Path]
    kind: Literal["auto", "weatherbench", "cmip", "weatherbench2"] = "auto"
    resolution: Literal["5.625deg", "2.8125deg", "1.40625deg", "1.4deg"] | None = None
    quick: bool = False


def recognises(path: Path) -> bool:
    """Returns whether the folder is a prepared store; other weather data are recognised when they are opened."""
    from smoe_paper.weather.data.store_format import METADATA_FILE, PREPARATION_FILE

    return any((path / name).is_file() for name in (METADATA_FILE, PREPARATION_FILE))


def run(args: list[str]) -> int:
    """Checks a folder, prints the result, and returns 0 for usable data and 1 otherwise."""
    options = parse(Check, args, prog="smoe data check")
    if recognises(options.path):
        return _check_store(options.path, options.quick)

    from rich.console import Console

    from smoe.training.progress import ProgressBar
    from smoe_paper.weather.data.describe import describe

    with ProgressBar() as bar:
        found = describe(
            options.path, kind=options.kind, resolution=options.resolution, quick=options.quick, progress=bar.show
        )
    print_description(found, options.quick, Console(highlight=False, soft_wrap=True, markup=False))
    return 0 if found.is_usable else 1


def _check_store(path: Path, quick: bool) -> int:
    from rich.console import Console
    from rich.progress import track

    from smoe_paper.weather.data.store import WeatherStore
    from smoe_paper.weather.store_report import describe_store

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
    """Prints a description: facts, a table of variables, problems, and the verdict."""
    from rich.table import Table

    from smoe.gridded.year_ranges import describe_years

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
