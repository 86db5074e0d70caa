"""`smoe recipes`: lists the recipes."""

from __future__ import annotations

import sys

from smoe.cli.main import UsageError
from smoe.experiments.paper import PAPER_RESULTS
from smoe.experiments.recipes import RECIPES

HELP = "usage: smoe recipes\n\nLists the recipes with the paper's results.\n"


def run(args: list[str]) -> int:
    """Prints a line for each recipe."""
    if args and args[0] in ("-h", "--help"):
        sys.stdout.write(HELP)
        return 0
    if args:
        raise UsageError(f"smoe recipes takes no argument, got {args[0]!r}")
    width = max(map(len, RECIPES)) + 2
    for name, recipe in RECIPES.items():
        description = " ".join((type(part).__doc__ or "").splitlines()[0] for part in (recipe, recipe.model))
        paper = PAPER_RESULTS.get(name)
        result = f" Paper: {paper.mean} ± {paper.spread:g} ({paper.metric}, {paper.source})." if paper else ""
        sys.stdout.write(f"{name:<{width}}{description}{result}\n")
    return 0
