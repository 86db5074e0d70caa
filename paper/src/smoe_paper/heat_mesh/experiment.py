"""Heat diffusion on every geometry as an experiment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from smoe_paper.experiments.experiment import SPLITS, Experiment, Notify, ShowOptions
from smoe_paper.experiments.tables import TableSet
from smoe_paper.heat_mesh.recipes import MESH_RECIPES, MeshRecipe
from smoe_paper.heat_mesh.tables import MESH_TABLES

if TYPE_CHECKING:
    from smoe.training.task import Task
    from smoe_paper.experiments.report_parts import ReportParts
    from smoe_paper.experiments.task import DryTask, OpenRun


class MeshExperiment(Experiment):
    """Heat diffusing over regions of a line, a volume, a sphere or a surface; the data are simulated in seconds."""

    name: ClassVar[str] = "heat-mesh"
    recipe_type = MeshRecipe
    recipes = MESH_RECIPES
    tables: ClassVar[TableSet] = MESH_TABLES
    draws_splits: ClassVar[bool] = False

    def build(self, recipe: MeshRecipe, splits: tuple[str, ...] = SPLITS, notify: Notify = print) -> Task:
        """Simulates the data and makes the network."""
        from smoe_paper.heat_mesh.model import build_task

        return build_task(recipe, splits, notify)

    def build_dry(self, recipe: MeshRecipe) -> DryTask:
        """Makes the network without simulating."""
        from smoe_paper.heat_mesh.model import build_dry_task

        return build_dry_task(recipe)

    def draw(self, run: OpenRun, options: ShowOptions) -> list[Path]:
        """Draws the accuracy by epoch, and the routing beside the regions."""
        from smoe_paper.heat_mesh.pictures import draw_run

        del options
        return draw_run(run)

    def report_parts(self, run: OpenRun, split: str | None, notify: Notify = print) -> ReportParts:
        """Returns the domain and its regions."""
        from smoe_paper.heat_mesh.pictures import report_parts

        del split, notify
        return report_parts(run)

    def default_data(self, runs_dir: Path) -> Path:
        """The data are simulated and kept beside the runs."""
        return runs_dir / "data"


HEAT_MESH = MeshExperiment()
