"""Dispatch commands; report expected errors in one line. Imports nothing heavy."""

from __future__ import annotations

import importlib
import os
import re
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import NamedTuple

from smoe.command_line import UsageError
from smoe.errors import SmoeError, naming_extras, printable, stopped_by_signals, stopped_code, suggest


class Command(NamedTuple):
    """A command of `smoe`, with a line and examples for the help text."""

    target: str  # function of the arguments that returns an exit code, as `module:function`; a module alone has `run`
    text: str
    examples: tuple[str, ...] = ()


COMMANDS = {
    "fit": Command(
        "smoe.cli.fit:run_fit",
        "fit a location-aware model to gridded data of your own",
        ("smoe fit inputs.zarr targets.nc --train 1979:2015 --validate 2016 -o runs/mine",),
    ),
    "predict": Command(
        "smoe.cli.fit:run_predict",
        "predict from new data by a model that smoe fit made",
        ("smoe predict runs/mine new.nc -o predicted.nc",),
    ),
    "report": Command(
        "smoe.cli.report",
        "write a page about one fitted model or several: scores, curves, routing, errors",
        ("smoe report runs/mine runs/other -o report.html",),
    ),
    "completion": Command(
        "smoe.cli.main:run_completion",
        "print what a shell needs to complete commands and flags: bash, zsh or fish",
        ('eval "$(smoe completion bash)"',),
    ),
}

USAGE = """usage: smoe COMMAND ...

Spatial Mixture-of-Experts: layers that learn what to do where.

{commands}

examples:
{examples}

`smoe COMMAND --help` explains a command.
With SMOE_TRACEBACK=1 in the environment, errors show where they arose.
"""

START = """smoe: layers that learn what to do where, for data on a grid, a sphere or a mesh.

Your own NetCDF, Zarr or GRIB files:
  smoe fit inputs.nc targets.nc --validate 2016 -o runs/mine
  smoe report runs/mine                       a page: scores, maps, errors
  smoe predict runs/mine new.nc -o predicted.nc

In your own network, in place of a convolution:
  smoe.SpatialMoE2d(in_channels, out_channels, kernel_size=3, spatial_shape=(H, W))
{found}
`smoe --help` lists all commands, `smoe COMMAND --help` explains one.
"""

_FLAGS = r'grep -oE "\-\-[a-z][a-z.-]*" | sort -u'
_BASH = """_smoe() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}"
  if [ "$COMP_CWORD" -eq 1 ]; then COMPREPLY=($(compgen -W "{names}" -- "$word"))
  elif [[ "$word" == -* ]]; then
    COMPREPLY=($(compgen -W "$(smoe "${{COMP_WORDS[1]}}" --help 2>/dev/null | {flags})" -- "$word"))
  fi
}}
complete -o default -F _smoe smoe
"""
SHELLS = {
    "bash": _BASH,
    "zsh": f"autoload -U +X compinit bashcompinit && compinit && bashcompinit\n{_BASH}",
    "fish": """complete -c smoe -n __fish_use_subcommand -f -a "{names}"
complete -c smoe -n 'not __fish_use_subcommand; and string match -q -- "-*" (commandline -ct)' \\
  -a '(smoe (commandline -opc)[2] --help 2>/dev/null | {flags})'
""",
}


def main(args: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code: 0, 1 failed, 2 a mistake in what was typed, 128 + n after signal n."""
    args = list(sys.argv[1:] if args is None else args)
    try:
        with stopped_by_signals():
            return _run(args)
    except UsageError as error:
        return _complain(str(error), 2)
    except BrokenPipeError:
        return 1
    except KeyboardInterrupt as stop:
        code = stopped_code(stop)
        # The terminal may be gone.
        with suppress(OSError):
            sys.stderr.write(f"stopped by {signal.Signals(code - 128).name}\n")
        return code
    except Exception as error:
        if os.environ.get("SMOE_TRACEBACK"):
            raise
        if is_out_of_memory(error):
            remedy = "make the model, the batch or the data smaller"
            return _complain(f"there is not enough memory ({_first_sentence(error)}); {remedy}", 1)
        # Only errors that speak to the user are shortened; anything else is a bug, and its traceback is wanted.
        if not isinstance(error, (SmoeError, ValueError, OSError)):
            raise
        return _complain(str(error), 1)


def _run(args: list[str]) -> int:
    known = commands()
    if not args:
        sys.stdout.write(START.format(found=_found_here()))
        return 0
    if args[0] in ("-h", "--help", "help"):
        groups = {
            "your own data, and any run:": COMMANDS.keys(),
            "the paper's experiments:": known.keys() - COMMANDS.keys(),
        }
        lines = "\n".join(
            "\n".join([title, *(f"  {name:<11}{known[name].text}" for name in known if name in names)])
            for title, names in groups.items()
            if names
        )
        examples = "\n".join(f"  {example}" for command in known.values() for example in command.examples)
        sys.stdout.write(USAGE.format(commands=lines, examples=examples))
        return 0
    if args[0] == "--version":
        from smoe.version import __version__

        sys.stdout.write(f"smoe {__version__}\n")
        return 0
    if args[0] not in known:
        raise UsageError(f"no command named {args[0]!r}; {suggest(args[0], known)}")
    with naming_extras(f"smoe {args[0]}"):
        module, _, function = known[args[0]].target.partition(":")
        return getattr(importlib.import_module(module), function or "run")(args[1:])


def commands() -> dict[str, Command]:
    """All commands that are installed: those of this package, and those of others, which may replace them.

    A distribution adds commands by an entry point of the group `smoe.commands`: a mapping from names to `Command`.
    """
    found = dict(COMMANDS)
    for entry in entry_points(group="smoe.commands"):
        found |= entry.load()
    return found


def _found_here() -> str:
    """What can be done with the newest run below the folder `runs`."""
    runs = [path.parent for name in ("recipe.json", "config.json") for path in Path("runs").glob(f"*/{name}")]
    if not runs:
        return ""
    newest = max(runs, key=lambda path: path.stat().st_mtime)
    return f"\nThe newest run here:\n  smoe report {newest}\n"


def run_completion(args: list[str]) -> int:
    if args in (["-h"], ["--help"]):
        sys.stdout.write('usage: smoe completion bash|zsh|fish\n\nin ~/.bashrc:  eval "$(smoe completion bash)"\n')
        return 0
    if len(args) != 1 or args[0] not in SHELLS:
        raise UsageError(f'name the shell: smoe completion {"|".join(SHELLS)}; bash: eval "$(smoe completion bash)"')
    sys.stdout.write(SHELLS[args[0]].format(names=" ".join(commands()), flags=_FLAGS))
    return 0


def is_out_of_memory(error: Exception) -> bool:
    """Whether memory could not be allocated; torch says so by a RuntimeError."""
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "allocate memory" in str(error))


def _first_sentence(error: Exception) -> str:
    asked = re.search(r"you tried to allocate (\d+) bytes", str(error))
    return f"{int(asked[1]) / 1e9:,.1f} GB were asked for" if asked else str(error) or type(error).__name__


def _complain(text: str, code: int) -> int:
    # Names of files and values from others can hold codes that a terminal would obey.
    harmless = printable(text)
    # The reason stands at the beginning, and the remedy at the end.
    shown = harmless if len(harmless) <= 2000 else f"{harmless[:1500]} [...] {harmless[-400:]}"
    sys.stderr.write(f"smoe: error: {shown}\n")
    return code
