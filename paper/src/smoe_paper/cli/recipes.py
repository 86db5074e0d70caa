"""`smoe recipes`: lists the recipes."""

from __future__ import annotations

import sys

from smoe.command_line import UsageError
from smoe_paper.experiments.registry import all_recipes, experiment_of

HELP = "usage: smoe recipes\n\nLists the recipes with the paper's results.\n"


def run(args: list[str]) -> int:
    """Prints a line for each recipe."""
    if args and args[0] in ("-h", "--help"):
        sys.stdout.write(HELP)
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
