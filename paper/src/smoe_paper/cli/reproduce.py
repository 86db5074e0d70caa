"""`smoe reproduce`: trains what tables of the paper need and writes them beside the paper's numbers."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from smoe.command_line import UsageError, parse
from smoe.errors import suggest
from smoe_paper.experiments.experiment import EXPERIMENTS, Experiment, all_experiments, find_experiment
from smoe_paper.experiments.stored_runs import RunStore
from smoe_paper.experiments.tables import ResultTable, markdown, page, write_report

HELP = """usage: smoe reproduce TABLE [TABLE ...] [--seeds N] [--scale small|paper] [--jobs N] [--store DIR] [--dry-run]

Trains every run that a table needs and that is not stored yet, and writes the table beside the paper's numbers into
--output-dir. Each run is stored when it ends, and the same command continues after a stop. --dry-run trains and writes
nothing: it prints the tables of what is stored and lists the runs that are missing. `smoe reproduce page` writes all
tables of what is stored again, and paper/results/tables.md, which shows every table of the paper beside ours.

tables:
{tables}

--store is the data: a store of `smoe data prepare weather`, a folder of stores of `smoe data prepare ens10` with names
such as z500-5, or the files of `smoe data fetch` (images). At scale small, weather and ens10 use what `make simulate`
and `make simulate-ensemble` make.

examples:
  smoe reproduce heat/gates --seeds 3 --jobs 2
  smoe reproduce heat weather ens10 images --dry-run
  smoe reproduce ens10/t850 --scale small --seeds 2 --store data/ensemble-stores --rows "10 members"
"""

RESULTS = Path("paper/results")


@dataclass(frozen=True)
class Reproduce:
    """Trains what tables of the paper need, for example: smoe reproduce heat/gates --seeds 3 --jobs 2."""

    # Number of runs of each row; the seeds are 0, 1, ... As many as the paper's if not given: ten, or three of weather.
    seeds: int | None = None
    # Size of the runs, which the tables describe: the largest, mostly `paper`, if not given; `small` is one for two
    # cores.
    scale: str = ""
    jobs: int = 1  # Number of runs that train at the same time, each in a process of its own.
    threads: int = 1  # Threads of each process; more jobs use cores better than more threads do.
    rows: str = ""  # Train only rows with this label, or with a cell of this text; the tables show all.
    # Folder of the tables, the figures and the results of the runs; paper/results/EXPERIMENT if not given.
    output_dir: Path | None = None
    runs_dir: Path = Path("runs/reproduce")  # Folder of unfinished runs.
    # Place of the data: a weather store, a folder of stores of ensembles, or a folder of images.
    store: Path | None = None
    # Train and write nothing; print the tables and the runs that are missing.
    dry_run: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False

    def __post_init__(self) -> None:
        for name in ("seeds", "jobs", "threads"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise UsageError(f"--{name} must be at least 1, got {getattr(self, name)}")


def run(args: list[str]) -> int:
    if args and args[0] in ("-h", "--help"):
        sys.stdout.write(HELP.format(tables="\n".join(_list(experiment) for experiment in all_experiments())))
        return 0
    names = list(itertools.takewhile(lambda arg: not arg.startswith("-"), args))
    if not names:
        raise UsageError(
            f"name a table first, or {' or '.join(EXPERIMENTS)} for all of them (see smoe reproduce --help)"
        )
    if names == ["page"]:
        return _write_page()
    chosen = [_select(name) for name in names]
    options = parse(Reproduce, args[len(names) :], prog="smoe reproduce TABLE")
    if len({experiment.name for experiment, _ in chosen}) > 1 and options.output_dir is not None:
        raise UsageError("--output-dir is the folder of one experiment: give tables of one experiment")
    return max(_reproduce(experiment, tables, options) for experiment, tables in chosen)


def _write_page() -> int:
    """Writes every table of what is stored again, and the page that shows those of the paper."""
    stores = {experiment: RunStore(RESULTS / experiment.name / "runs.jsonl") for experiment in all_experiments()}
    for experiment, store in stores.items():
        for table in experiment.tables.tables:
            write_report(experiment.tables, table, store)
    text = page((experiment.tables, store) for experiment, store in stores.items())
    (RESULTS / "tables.md").write_text(f"{text}\n{(RESULTS / 'text.md').read_text()}")
    sys.stdout.write(f"{RESULTS / 'tables.md'}\n")
    return 0


def _list(experiment: Experiment) -> str:
    lines = [f"  {experiment.name:<28}all of these"]
    for table in experiment.tables.tables:
        source = f", {table.source} of the paper" if table.source else ""
        lines.append(f"  {table.name:<28}{table.title} ({len(table.rows)} rows{source})")
    return "\n".join(lines)


def _select(name: str) -> tuple[Experiment, list[ResultTable]]:
    first = name.partition("/")[0]
    if first not in EXPERIMENTS:
        raise UsageError(f"no table named {name!r}; {suggest(first, EXPERIMENTS)} (see smoe reproduce --help)")
    experiment = find_experiment(first)
    try:
        return experiment, experiment.tables.select(name)
    except ValueError as error:
        raise UsageError(f"{error} (see smoe reproduce --help)") from None


def _reproduce(experiment: Experiment, tables: list[ResultTable], options: Reproduce) -> int:
    try:
        scale = experiment.tables.scale(options.scale or experiment.tables.scales[0].name)
    except ValueError as error:
        raise UsageError(str(error)) from None
    output_dir = options.output_dir or RESULTS / experiment.name
    data = options.store or experiment.data_folder
    if data is None and experiment.tables.data_field and not options.dry_run:
        raise UsageError(
            f"--store: where are the data of {experiment.name}? smoe data prepare {experiment.name} makes a store"
        )

    # torch is imported from here on only: a typo is answered at once.
    from smoe.training.progress import ProgressBar
    from smoe_paper.experiments.runs import PlannedRun, make_runs, plan_runs

    store = RunStore(output_dir / "runs.jsonl")
    data = data or Path()
    num_seeds = options.seeds or experiment.tables.num_seeds
    planned = plan_runs(experiment.tables, tables, scale, num_seeds, only=options.rows, data=data)
    if not planned:
        labels = "; ".join(row.label for table in tables for row in table.rows if row.can_run)
        raise UsageError(f"--rows: no row that can be trained is {options.rows!r}; there are {labels}")
    missing = [run for run in planned if run.key not in store.runs()]
    write = sys.stdout.write
    if options.dry_run:
        for table in tables:
            write(markdown(experiment.tables, table, store) + "\n")
        write(f"{len(planned) - len(missing)} of {len(planned)} runs are stored in {store.path}\n")
        for run in missing:
            write(f"missing: {run.label}\n")
        return 0

    def write_tables() -> list[Path]:
        return [write_report(experiment.tables, table, store) for table in tables]

    if (store_references := experiment.find("store_references")) is not None:
        store_references(tables, scale, data, store, _notify)
    written = write_tables()
    if missing:
        # Runs take minutes, and their speed is known only over many of them.
        with ProgressBar(speed_seconds=6 * 3600) as bar:
            bar.begin(len(planned), len(planned) - len(missing), "runs")

            def end(run: PlannedRun) -> None:
                bar.advance()
                bar.notify(f"{run.label}: {_reached(store.runs()[run.key], run.recipe.training.monitor)}")
                write_tables()

            make_runs(missing, store, options.runs_dir, jobs=options.jobs, num_threads=options.threads, on_end=end)
    if (draw_tables := experiment.find("draw_tables")) is not None:
        written += draw_tables(tables, store, options.runs_dir, output_dir, data)
    write(f"{len(planned)} of {len(planned)} runs are stored in {store.path}\n")
    write("".join(f"{path}\n" for path in written))
    return 0


def _reached(result: Mapping[str, Any], monitor: str) -> str:
    value = result["test"].get(monitor)
    return "diverged" if value is None else f"{value:.4f} after {result['epochs']} epochs ({result['stopped']})"


def _notify(text: str) -> None:
    sys.stderr.write(f"{text}\n")
