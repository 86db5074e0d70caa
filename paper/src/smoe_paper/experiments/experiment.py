"""What an experiment provides, all experiments by name, and their recipes. Imports no torch.

An experiment is a folder and one line in `EXPERIMENTS`. What needs torch is found by name in its `model.py`,
`scores.py` or `pictures.py`: `build_task`, and where they are wanted `report_parts`, `draw_tables`, ...
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from smoe.errors import suggest
from smoe.training import RecipeError, from_plain
from smoe_paper.experiments.recipe import Recipe
from smoe_paper.experiments.tables import PublishedResult, TableSet

if TYPE_CHECKING:
    import numpy as np

    from smoe.reports.run_report import Places
    from smoe.training.task import Task
    from smoe_paper.experiments.task import OpenRun

EXPERIMENTS = {
    "heat": "smoe_paper.heat.tables:HEAT",
    "weather": "smoe_paper.weather.recipes:WEATHER",
    "ens10": "smoe_paper.ens10.recipes:ENS10",
    "images": "smoe_paper.images.recipes:IMAGES",
    "heat-mesh": "smoe_paper.heat_mesh.recipes:HEAT_MESH",
}
"""Module and object of each experiment, in the order of the paper; imported on first use."""

SPLITS = ("train", "validation", "test")

Notify = Callable[[str], None]
"""Receives messages about what is being done."""


@dataclass(frozen=True)
class ReportParts:
    """What only the experiment knows about a run, for its report."""

    places: Places | None = None
    targets: tuple[tuple[str, str], ...] = ()
    baselines: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    published: Mapping[str, tuple[PublishedResult, ...]] | None = None  # by model; None for those of the recipes
    regions: np.ndarray | None = None  # number of the known region of each pixel, `(P,)`; None for those of the task
    filters: Mapping[str, np.ndarray] = field(default_factory=dict)  # that the experts should find, `(k, k)` each
    data: Mapping[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


class Experiment:
    """One experiment behind one interface. The command line uses nothing else."""

    name: ClassVar[str]  # first part of the names of its tables
    recipe_type: ClassVar[type[Recipe]]
    recipes: ClassVar[Mapping[str, Recipe]]  # by their full names, such as `heat/smoe`
    published_results: ClassVar[Mapping[str, PublishedResult]] = {}  # of the paper, by the names of recipes
    tables: ClassVar[TableSet]
    builds_without_data: ClassVar[bool] = False  # whether `build` without splits opens no path of the recipe's data
    data_folder: ClassVar[Path | None] = None  # of the data if the user names none; None if they have to

    def find(self, function: str) -> Callable[..., Any] | None:
        """A function of the experiment's folder."""
        package = type(self).__module__.rpartition(".")[0]
        for name in ("model", "scores", "pictures"):
            if package and importlib.util.find_spec(f"{package}.{name}") is not None:
                found = getattr(importlib.import_module(f"{package}.{name}"), function, None)
                if found is not None:
                    return found
        return None

    def build(self, recipe: Any, splits: tuple[str, ...] = SPLITS, notify: Notify = print) -> Task:
        build_task = self.find("build_task")
        assert build_task is not None
        return build_task(recipe, splits, notify)

    def published(self, recipe_name: str) -> tuple[PublishedResult, ...]:
        found = self.published_results.get(recipe_name)
        return () if found is None else (found,)

    def evaluate(self, run: OpenRun, split: str) -> None:
        """Scores a run, which was opened with the split, and prints a table."""
        parts = self.report_parts(run, split, lambda _: None)
        published = self.published(run.name) if parts.published is None else parts.published.get(run.name, ())
        print_result(run.name, split, run.evaluate(split), run.directory.path, published, parts.baselines)
        for remark in parts.remarks:
            print_text(remark)

    def report_parts(self, run: OpenRun, split: str | None, notify: Notify = print) -> ReportParts:
        found = self.find("report_parts")
        return ReportParts() if found is None else found(run, split, notify)


@functools.cache
def find_experiment(name: str) -> Experiment:
    if name not in EXPERIMENTS:
        raise RecipeError(f"there is no experiment named {name!r}; {suggest(name, EXPERIMENTS)}")
    module, _, attribute = EXPERIMENTS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def experiment_of(recipe: Recipe) -> Experiment:
    return find_experiment(recipe.experiment)


def all_experiments() -> list[Experiment]:
    return [find_experiment(name) for name in EXPERIMENTS]


@functools.cache
def all_recipes() -> Mapping[str, Recipe]:
    return {name: recipe for experiment in all_experiments() for name, recipe in experiment.recipes.items()}


def find_recipe(name: str) -> Recipe:
    recipes = all_recipes()
    if name in recipes:
        return recipes[name]
    raise RecipeError(f"no recipe named {name!r}; {suggest(name, recipes, cutoff=0.4)}")


def recipe_from_plain(plain: dict[str, Any]) -> Recipe:
    """The inverse of `Recipe.plain`; a `RecipeError` names a field that is unknown, missing or of another type."""
    name = plain.get("experiment")
    if not isinstance(name, str):
        raise RecipeError(f"experiment must be a text, got {name!r}")
    fields = {field: part for field, part in plain.items() if field != "experiment"}
    return from_plain(find_experiment(name).recipe_type, fields)


def print_result(
    name: str,
    split: str,
    values: Mapping[str, float],
    output_dir: Path,
    published: Sequence[PublishedResult] = (),
    others: Mapping[str, Mapping[str, float]] | None = None,
    *,
    epochs: int | None = None,
    seconds: float | None = None,
) -> None:
    """Prints the metrics of a run on a split, beside those of other predictions and, on the test split, the paper's."""
    from rich.console import Console
    from rich.table import Table

    paper = {result.metric: result for result in published if split == "test"}
    columns = {"here": values, **(others or {})}
    table = Table(title=f"{name}, {split} split", title_justify="left")
    for header in ("metric", *columns, "paper"):
        table.add_column(header, justify="left" if header == "metric" else "right", overflow="fold")
    for metric in dict.fromkeys(metric for column in columns.values() for metric in column):
        result = paper.get(metric)
        cells = [format_score(column[metric]) if metric in column else "" for column in columns.values()]
        table.add_row(metric, *cells, "" if result is None else f"{result.mean} ± {result.spread:g}")
    blanks = [""] * len(others or {})
    if epochs is not None:
        paper_epochs = next((str(result.epochs) for result in paper.values() if result.epochs is not None), "")
        table.add_row("epochs", str(epochs), *blanks, paper_epochs)
    if seconds is not None:
        table.add_row("seconds", f"{seconds:.0f}", *blanks, "")
    Console(highlight=False).print(table)
    print_text(f"run directory: {output_dir}")


def print_text(text: str) -> None:
    from rich.console import Console

    Console(highlight=False).print(text, markup=False, soft_wrap=True)


def format_score(value: float) -> str:
    return f"{value:.4f}" if abs(value) >= 1e-2 else f"{value:.3e}"
