"""`smoe bench`: measures speed, memory and learning, and prints which backend is in use."""

from __future__ import annotations

import importlib
import sys

from smoe.command_line import UsageError
from smoe.errors import suggest
from smoe_paper.benchmarks.registry import BENCHMARKS

HELP = """usage: smoe bench NAME [...]

Measures, prints a table, and stores it in paper/results/bench with machine, commit and date.

benchmarks:
{names}

examples:
  smoe bench backends
  smoe bench layer                       # all configurations; takes some ten minutes
  smoe bench layer heat CIFAR            # those whose name contains a word
  smoe bench learn

`smoe bench NAME --help` lists the options of a benchmark.
"""


def run(args: list[str]) -> int:
    """Runs the benchmark that was named."""
    if not args or args[0] in ("-h", "--help"):
        names = "\n".join(f"  {name:<20}{benchmark.text}" for name, benchmark in BENCHMARKS.items())
        sys.stdout.write(HELP.format(names=names))
        return 0 if args else 2
    if args[0] not in BENCHMARKS:
        raise UsageError(f"smoe bench has no {args[0]!r}; {suggest(args[0], BENCHMARKS)}")
    importlib.import_module(f"smoe_paper.benchmarks.{BENCHMARKS[args[0]].module}").main(args[1:])
    return 0
