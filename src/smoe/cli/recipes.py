"""`smoe recipes`: lists the recipes."""

from __future__ import annotations

import sys

from smoe.cli.main import UsageError
from smoe.experiments.paper import PAPER_RESULTS
from smoe.experiments.recipes import RECIPES
from smoe.paper.weather.published import LEADS_OF_TABLES, PUBLISHED

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
        sys.stdout.write(f"{name:<{width}}{description}{_papers_result(name)}\n")
    return 0


def _papers_result(name: str) -> str:
    if name in PAPER_RESULTS:
        paper = PAPER_RESULTS[name]
        return f" Paper: {paper.mean} ± {paper.spread:g} ({paper.metric}, {paper.source})."
    for row in PUBLISHED:
        if row.recipe == name:
            z, t = ([row.rmse[channel, lead] for lead in LEADS_OF_TABLES] for channel in ("z_500", "t_850"))
            leads = " and ".join(map(str, LEADS_OF_TABLES))
            return f" Paper: RMSE at {leads} h, Z500 {z[0]:g} and {z[1]:g} m2 s-2, T850 {t[0]:.2f} and {t[1]:.2f} K."
    return ""
