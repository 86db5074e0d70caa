"""`smoe reproduce`: trains what the tables of the paper need, and writes them beside the paper's numbers."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from smoe.cli.main import UsageError
from smoe.cli.parse import parse
from smoe.experiments.reproduction.stored_runs import RunStore
from smoe.experiments.reproduction.tables import Experiment, ResultTable, Scale
from smoe.paper.ens10.tables import ENS10
from smoe.paper.heat.tables import HEAT
from smoe.paper.imagenet.tables import IMAGENET
from smoe.paper.images.tables import IMAGES
from smoe.paper.weather.tables import WEATHER
from smoe.suggestions import suggest

EXPERIMENTS = (HEAT, WEATHER, ENS10, IMAGES, IMAGENET)


def _list(experiment: Experiment) -> str:
    lines = [f"  {experiment.name:<28}all of these"]
    lines += [f"  {table.name:<28}{table.title} ({len(table.rows)} rows)" for table in experiment.tables]
    return "\n".join(lines)


HELP = f"""usage: smoe reproduce TABLE [--seeds N] [--scale small|paper] [--jobs N] [--store FOLDER] [--dry-run]

Trains every run that a table of the paper needs and is not stored yet, and writes the table beside the paper's numbers
into --output-dir, with figures. Each run is stored when it ends; the same command after a stop goes on where it was.

tables:
{chr(10).join(_list(experiment) for experiment in EXPERIMENTS)}

The weather tables need a store (`smoe data prepare weather`): of WeatherBench at scale paper, of the simulated
atmosphere (`make simulate`) at scale small. The ens10 tables need a folder of stores (`smoe data prepare ens10`) with
names such as z500-5 and t2m-10: of ENS-10, or of the simulated ensemble (`make simulate-ensemble`) at scale small.
The tables of small images look for the files of `smoe data fetch` in `data`, or in --store FOLDER; ImageNet is brought
by the user, as --store FOLDER with train/<class>/*.JPEG and val/<class>/*.JPEG.

examples:
  smoe reproduce heat --scale small --seeds 1 --jobs 2
  smoe reproduce heat/gates --seeds 3 --jobs 2
  smoe reproduce heat --dry-run
  smoe reproduce weather/3-days --scale small --seeds 2 --store data/simulated-store
  smoe reproduce ens10/t850 --scale small --seeds 2 --store data/ensemble-stores --rows "10 members"
  smoe reproduce images/mnist --scale small
"""


@dataclass(frozen=True)
class Reproduce:
    """Trains what tables of the paper need, for example: smoe reproduce heat/gates --seeds 3 --jobs 2.

    Attributes:
        seeds: runs of each row; seeds are 0, 1, ...
        scale: `paper` is the paper's size; `small` is one for two cores, which the tables describe.
        jobs: runs that train at the same time, each in a process of its own.
        threads: of each process; more jobs use cores better than more threads do.
        rows: train only rows whose label contains this; the tables show all.
        output_dir: where the tables, the figures and the results of the runs are written; results/EXPERIMENT if not
            given.
        runs_dir: where unfinished runs are kept, and the heat data.
        store: of the weather data; folder of the stores of ensembles; folder of the images.
        dry_run: train nothing: say what is missing, and write the tables of what is stored.
    """

    seeds: int = 3
    scale: str = "paper"
    jobs: int = 1
    threads: int = 1
    rows: str = ""
    output_dir: Path | None = None
    runs_dir: Path = Path("runs/reproduce")
    store: Path | None = None
    dry_run: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False

    def __post_init__(self) -> None:
        for name in ("seeds", "jobs", "threads"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name} must be at least 1, got {getattr(self, name)}")


def run(args: list[str]) -> int:
    """Parses, trains what is missing, and writes the tables."""
    if args and args[0] in ("-h", "--help"):
        sys.stdout.write(HELP)
        return 0
    if not args or args[0].startswith("-"):
        names = " or ".join(experiment.name for experiment in EXPERIMENTS)
        raise UsageError(f"name a table first, or {names} for all of them (see smoe reproduce --help)")
    name = args[0].partition("/")[0]
    experiment = next((it for it in EXPERIMENTS if it.name == name), None)
    if experiment is None:
        hint = suggest(name, (it.name for it in EXPERIMENTS))
        raise UsageError(f"no table named {args[0]!r}; {hint} (see smoe reproduce --help)")
    try:
        tables = experiment.select(args[0])
    except ValueError as error:
        raise UsageError(f"{error} (see smoe reproduce --help)") from None
    options = parse(Reproduce, args[1:], prog="smoe reproduce TABLE")
    try:
        scale = experiment.scale(options.scale)
    except ValueError as error:
        raise UsageError(str(error)) from None
    output_dir = options.output_dir or Path("results") / experiment.name
    # The other experiments' data are made while they run, or are where `smoe data fetch` puts them.
    default_data = {HEAT.name: options.runs_dir / "data", IMAGES.name: Path("data")}.get(experiment.name)
    data = default_data if experiment is HEAT or options.store is None else options.store
    if data is None:
        if not options.dry_run:
            remedy = (
                "a folder with train/<class>/*.JPEG and val/<class>/*.JPEG"
                if experiment is IMAGENET
                else f"smoe data prepare {experiment.name} makes a store"
            )
            raise UsageError(f"--store: where are the data of {args[0]}? {remedy}")
        data = Path()

    # torch is imported from here on only: a typo is answered at once.
    from smoe.cli.reproduce_progress import RunProgress
    from smoe.experiments.reproduction.plan import plan_runs
    from smoe.experiments.reproduction.report import write_report
    from smoe.experiments.reproduction.workers import make_runs

    store = RunStore(output_dir / "runs")
    planned = plan_runs(experiment, tables, scale, options.seeds, only=options.rows, data=data)
    missing = [run for run in planned if not store.has(run.key)]

    def write_tables() -> None:
        for table in tables:
            write_report(experiment, table, store, _report_path(output_dir, table))

    if not options.dry_run:
        _store_references(experiment, tables, scale, data, store)
    write_tables()
    is_complete = not missing
    if missing and not options.dry_run:
        with RunProgress(len(planned), len(planned) - len(missing), on_end=write_tables) as progress:
            is_complete = make_runs(
                missing, store, options.runs_dir, jobs=options.jobs, num_threads=options.threads, watcher=progress
            )
        write_tables()
    pictures = _draw_figures(experiment, tables, store, options.runs_dir, output_dir)
    num_stored = sum(store.has(run.key) for run in planned)
    say = sys.stdout.write
    say(f"{num_stored} of {len(planned)} runs are stored in {store.folder}\n")
    for path in [*(_report_path(output_dir, table) for table in tables), *pictures]:
        say(f"{path}\n")
    if is_complete:
        return 0
    if options.dry_run:
        for planned_run in planned:
            if not store.has(planned_run.key):
                say(f"missing: {planned_run.label}\n")
        return 0
    sys.stderr.write("stopped; what ended is stored, and the same command goes on from here\n")
    return 130


def _store_references(
    experiment: Experiment, tables: list[ResultTable], scale: Scale, data: Path, store: RunStore
) -> None:
    if experiment is WEATHER:
        from smoe.paper.weather.references import store_references
    elif experiment is ENS10:
        from smoe.paper.ens10.references import store_references
    else:
        return
    store_references(tables, scale, data, store, say=_say)


def _report_path(output_dir: Path, table: ResultTable) -> Path:
    return output_dir / f"{table.name.partition('/')[2]}.md"


def _draw_figures(
    experiment: Experiment, tables: list[ResultTable], store: RunStore, runs_dir: Path, output_dir: Path
) -> list[Path]:
    if experiment is HEAT:
        from smoe.paper.heat.figures import draw_figures

        return draw_figures(experiment, tables, store, runs_dir, output_dir)
    if experiment is IMAGES:
        from smoe.paper.images.figures import draw_figures as draw_image_figures

        return draw_image_figures(experiment, tables, store, runs_dir, output_dir)
    from smoe.experiments.reproduction.figures import draw_figures

    return draw_figures(experiment, tables, store, output_dir)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
