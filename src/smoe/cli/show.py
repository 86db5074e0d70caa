"""`smoe show`: draws what a fitted model learned."""

from __future__ import annotations

import sys
from pathlib import Path

from smoe.command_line import UsageError

HELP = """usage: smoe show MODEL

Draws the routing of a model that `smoe fit` made into MODEL/pictures and prints the paths.
"""


def run(args: list[str]) -> int:
    """Draws, and prints the pictures' paths."""
    if not args or args[0] in ("-h", "--help"):
        sys.stdout.write(HELP)
        return 0 if args else 2
    if len(args) > 1 or args[0].startswith("-"):
        raise UsageError(f"smoe show takes the folder of one model, got {' '.join(args)}")

    from smoe.regression._regressor import draw_run

    for picture in draw_run(Path(args[0])):
        sys.stdout.write(f"{picture}\n")
    return 0
