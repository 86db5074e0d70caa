"""Heat diffusion as an experiment (paper section 3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from smoe_paper.experiments.experiment import SPLITS, Experiment, Notify, ShowOptions
from smoe_paper.experiments.stored_runs import RunStore
from smoe_paper.experiments.tables import PublishedResult, ResultTable, TableSet
from smoe_paper.heat.recipes import HEAT_RECIPES, PUBLISHED, HeatRecipe
from smoe_paper.heat.tables import HEAT_TABLES

if TYPE_CHECKING:
    from smoe.training.task import Task
    from smoe_paper.experiments.report_parts import ReportParts
    from smoe_paper.experiments.task import DryTask, OpenRun


class HeatExperiment(Experiment):
    """Heat diffusion over regions of different diffusivity. The data are simulated."""

    name: ClassVar[str] = "heat"
    recipe_type = HeatRecipe
    recipes = HEAT_RECIPES
    tables: ClassVar[TableSet] = HEAT_TABLES
    draws_splits: ClassVar[bool] = False

    def build(self, recipe: HeatRecipe, splits: tuple[str, ...] = SPLITS, notify: Notify = print) -> Task:
        """Simulates the data and makes the network."""
        from smoe_paper.heat.model import build_task

        return build_task(recipe, splits, notify)

    def build_dry(self, recipe: HeatRecipe) -> DryTask:
        """Makes the network without simulating."""
        from smoe_paper.heat.model import build_dry_task

        return build_dry_task(recipe)

    def published(self, recipe_name: str) -> tuple[PublishedResult, ...]:
        """Returns the result that the paper prints for a recipe."""
        return (PUBLISHED[recipe_name],) if recipe_name in PUBLISHED else ()

    def draw(self, run: OpenRun, options: ShowOptions) -> list[Path]:
        """Draws the accuracy by epoch, and the routing map with the experts."""
        from smoe_paper.heat.pictures import draw_run

        del options
        return draw_run(run)

    def report_parts(self, run: OpenRun, split: str | None, notify: Notify = print) -> ReportParts:
        """Returns the grid, the known regions and the stencils of the diffusivities."""
        from smoe_paper.heat.pictures import report_parts

        del split, notify
        return report_parts(run)

    def draw_tables(
        self, tables: Sequence[ResultTable], store: RunStore, runs_dir: Path, output_dir: Path, data: Path
    ) -> list[Path]:
        """Draws routing, accuracies, and the grid of quantiles and damping factors."""
        from smoe_paper.heat.pictures import draw_figures

        del data
        return draw_figures(self.tables, tables, store, runs_dir, output_dir)

    def default_data(self, runs_dir: Path) -> Path:
        """Returns the folder beside the runs that keeps the simulated data."""
        return runs_dir / "data"


HEAT = HeatExperiment()
