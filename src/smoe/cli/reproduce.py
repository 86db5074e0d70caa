"""`smoe reproduce`: trains what the tables of the paper need, and writes them beside the paper's numbers."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from smoe.cli.main import UsageError
from smoe.cli.parse import parse
from smoe.experiments.heat.tables import HEAT

HELP = f"""usage: smoe reproduce TABLE [--seeds N] [--scale small|paper] [--jobs N] [--dry-run]

Trains every run that a table of the paper needs and is not stored yet, and writes the table beside the paper's numbers
into --output-dir, with figures. Each run is stored when it ends; the same command after a stop goes on where it was.

tables:
  {HEAT.name:<28}all of these
{chr(10).join(f"  {table.name:<28}{table.title} ({len(table.rows)} rows)" for table in HEAT.tables)}

examples:
  smoe reproduce heat --scale small --seeds 1 --jobs 2
  smoe reproduce heat/gates --seeds 3 --jobs 2
  smoe reproduce heat --dry-run
"""


@dataclass(frozen=True)
class Reproduce:
    """Trains what tables of the paper need, for example: smoe reproduce heat/gates --seeds 3 --jobs 2.

    Attributes:
        seeds: runs of each row; seeds are 0, 1, ...
        scale: `paper` is the paper's amount of data, `small` a quarter of it.
        jobs: runs that train at the same time, each in a process of its own.
        threads: of each process; more jobs use cores better than more threads do.
        rows: train only rows whose label contains this; the tables show all.
        output_dir: where the tables, the figures and the results of the runs are written.
        runs_dir: where unfinished runs are kept, and the simulated data.
        dry_run: train nothing: say what is missing, and write the tables of what is stored.
    """

    seeds: int = 3
    scale: str = "paper"
    jobs: int = 1
    threads: int = 1
    rows: str = ""
    output_dir: Path = Path("results/heat")
    runs_dir: Path = Path("runs/reproduce")
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
        raise UsageError("name a table first, or heat for all of them (see smoe reproduce --help)")
    try:
        tables = HEAT.select(args[0])
    except ValueError as error:
        raise UsageError(f"{error} (see smoe reproduce --help)") from None
    options = parse(Reproduce, args[1:], prog="smoe reproduce TABLE")
    try:
        scale = HEAT.scale(options.scale)
    except ValueError as error:
        raise UsageError(str(error)) from None

    # torch is imported from here on only: a typo is answered at once.
    from smoe.cli.reproduce_progress import RunProgress
    from smoe.experiments.heat.figures import draw_figures
    from smoe.experiments.reproduction.plan import plan_runs
    from smoe.experiments.reproduction.report import write_report
    from smoe.experiments.reproduction.stored_runs import RunStore
    from smoe.experiments.reproduction.workers import make_runs

    store = RunStore(options.output_dir / "runs")
    planned = plan_runs(tables, scale, options.seeds, only=options.rows, data_dir=options.runs_dir / "data")
    missing = [run for run in planned if not store.has(run.key)]

    def write_tables() -> None:
        for table in tables:
            write_report(HEAT, table, store, options.output_dir / f"{table.name.partition('/')[2]}.md")

    write_tables()
    is_complete = not missing
    if missing and not options.dry_run:
        with RunProgress(len(planned), len(planned) - len(missing), on_end=write_tables) as progress:
            is_complete = make_runs(
                missing, store, options.runs_dir, jobs=options.jobs, num_threads=options.threads, watcher=progress
            )
        write_tables()
    pictures = draw_figures(HEAT, tables, store, options.runs_dir, options.output_dir)
    num_stored = sum(store.has(run.key) for run in planned)
    say = sys.stdout.write
    say(f"{num_stored} of {len(planned)} runs are stored in {store.folder}\n")
    for table in tables:
        say(f"{options.output_dir / (table.name.partition('/')[2] + '.md')}\n")
    for picture in pictures:
        say(f"{picture}\n")
    if is_complete:
        return 0
    if options.dry_run:
        for planned_run in planned:
            if not store.has(planned_run.key):
                say(f"missing: {planned_run.label}\n")
        return 0
    sys.stderr.write("stopped; what ended is stored, and the same command goes on from here\n")
    return 130
