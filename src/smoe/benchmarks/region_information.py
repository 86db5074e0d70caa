"""Information of trained gates about known regions (land and sea, or heat's three) before and after the training.

Run: smoe bench region-information RUN [RUN ...], where RUN is a folder of `smoe train` or `smoe reproduce`.
Runs without a gate of the regions' grid are left out. Prints the table and stores it in results/bench.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from smoe.benchmarks.stored_table import circumstances, write_table
from smoe.diagnostics.routing_changes import RoutingChanges
from smoe.experiments.registry import experiment_of
from smoe.experiments.runs import open_run
from smoe.training.task import Task

KEY = "routing/region_information"


def information(task: Task) -> float | None:
    """Of the gates of a task's model as it is; None if there is none to ask."""
    return RoutingChanges(task.model, task.regions).observe(task.model).get(KEY)


def measure(path: Path) -> dict[str, Any] | None:
    """One line of the table."""
    run = open_run(path, notify=lambda _: None)
    end = information(run.task)
    if end is None:
        return None
    start = information(experiment_of(run.recipe).build(run.recipe, (), lambda _: None))
    assert start is not None
    plain = run.recipe.plain()
    model, damping = plain["model"], run.recipe.damping or run.recipe.rule.carried_damping
    return {
        "model": model["type"].removesuffix("Model"),
        "gate": model["gate"],
        "starts as": model["gate_init"],
        "prior": model.get("prior", "none"),
        "rule": run.recipe.rule.name,
        "quantile": plain["rule"].get("error_quantile", ""),
        "damping": "none" if damping is None else damping.factor,
        "seed": plain["seed"],
        "at the start, %": f"{100 * start:.2f}",
        "at the end, %": f"{100 * end:.2f}",
    }


def main(args: list[str] | None = None) -> None:
    """Measures and stores."""
    parser = argparse.ArgumentParser("smoe bench region-information", description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--name", default="region_information", help="of the stored table")
    arguments = parser.parse_args(args)
    rows = [row for row in map(measure, arguments.runs) if row is not None]
    notes = ", ".join(f"{key} {value}" for key, value in circumstances().items()) + "."
    path = Path("results/bench") / f"{arguments.name}.md"
    command = "smoe bench region-information RUN [RUN ...]"
    title = "What the routing says of known regions"
    print(write_table(path, title, command, list(rows[0]), rows, notes))


if __name__ == "__main__":
    main()
