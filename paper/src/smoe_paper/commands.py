"""What the experiments add to the command `smoe`. Imports nothing heavy."""

from __future__ import annotations

from smoe.cli.main import Command

_CLI = "smoe_paper.cli"

COMMANDS = {
    "train": Command(
        f"{_CLI}.train",
        "train a recipe",
        (
            "smoe train heat/smoe --seed 0 --output-dir runs/first",
            'smoe train heat/smoe --data.num-train-runs 100 --rule "rc(error_quantile=0.4)"',
            "smoe train --resume runs/first",
        ),
    ),
    "evaluate": Command(f"{_CLI}.runs:run_evaluate", "score a trained run", ("smoe evaluate runs/first",)),
    # In place of that of smoe, which knows fitted models only.
    "report": Command(
        f"{_CLI}.runs:run_report",
        "write a page about one run or several: scores, curves, routing, errors",
        ("smoe report runs/first runs/second -o report.html",),
    ),
    "reproduce": Command(
        f"{_CLI}.reproduce",
        "train what a table of the paper needs and write it beside the paper's numbers",
        ("smoe reproduce heat/gates --seeds 3 --jobs 2",),
    ),
    "recipes": Command(f"{_CLI}.data:run_recipes", "list the recipes", ("smoe recipes",)),
    "data": Command(
        f"{_CLI}.data:run_data",
        "describe data sets, fetch them and prepare them for training",
        ("smoe data prepare weather --root ~/weatherbench --output stores/era5",),
    ),
    "bench": Command(
        f"{_CLI}.data:run_bench", "measure speed, memory and learning of layers; print which backend is in use"
    ),
}
