"""Classification of small images as an experiment (paper appendix D)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from smoe_paper.experiments.experiment import SPLITS, DataCommand, Experiment, Notify, ShowOptions
from smoe_paper.experiments.stored_runs import RunStore
from smoe_paper.experiments.tables import PublishedResult, ResultTable, TableSet
from smoe_paper.images.recipes import IMAGE_RECIPES, PUBLISHED, ImageRecipe
from smoe_paper.images.tables import IMAGE_TABLES

if TYPE_CHECKING:
    from smoe.training.task import Task
    from smoe_paper.experiments.report_parts import ReportParts
    from smoe_paper.experiments.task import DryTask, OpenRun


class ImageExperiment(Experiment):
    """Classification of MNIST, Fashion-MNIST and CIFAR-10."""

    name: ClassVar[str] = "images"
    recipe_type = ImageRecipe
    recipes = IMAGE_RECIPES
    tables: ClassVar[TableSet] = IMAGE_TABLES
    builds_without_data: ClassVar[bool] = True
    data_commands: ClassVar[Mapping[tuple[str, str], DataCommand]] = {
        ("check", "images"): DataCommand("smoe_paper.images.commands:run_check", "MNIST, Fashion-MNIST, CIFAR-10"),
        ("fetch", "mnist"): DataCommand("smoe_paper.images.commands:run_mnist", "70,000 digits, 11.5 MB"),
        ("fetch", "fashion-mnist"): DataCommand(
            "smoe_paper.images.commands:run_fashion_mnist", "70,000 pieces of clothing, 31 MB"
        ),
    }

    def build(self, recipe: ImageRecipe, splits: tuple[str, ...] = SPLITS, notify: Notify = print) -> Task:
        """Reads the images and makes the classifier."""
        from smoe_paper.images.model import build_task

        return build_task(recipe, splits, notify)

    def build_dry(self, recipe: ImageRecipe) -> DryTask:
        """Makes the classifier for the published images."""
        from smoe_paper.images.model import build_dry_task

        return build_dry_task(recipe)

    def published(self, recipe_name: str) -> tuple[PublishedResult, ...]:
        """Returns the result that the paper prints for a recipe."""
        return (PUBLISHED[recipe_name],) if recipe_name in PUBLISHED else ()

    def draw(self, run: OpenRun, options: ShowOptions) -> list[Path]:
        """Draws the accuracy by epoch, the mistakes, and the routing over the mean image of each class."""
        from smoe_paper.images.pictures import draw_run

        return draw_run(run, options.split)

    def report_parts(self, run: OpenRun, split: str | None, notify: Notify = print) -> ReportParts:
        """Returns the classes with their mean images and mistakes."""
        from smoe_paper.images.pictures import report_parts

        del notify
        return report_parts(run, split)

    def draw_tables(
        self, tables: Sequence[ResultTable], store: RunStore, runs_dir: Path, output_dir: Path, data: Path
    ) -> list[Path]:
        """Draws errors by class and the routing."""
        from smoe_paper.images.pictures import draw_figures

        return draw_figures(self.tables, tables, store, runs_dir, output_dir, data)

    def default_data(self, runs_dir: Path) -> Path:
        """Returns the folder that `smoe data fetch` writes."""
        del runs_dir
        return Path("data")


IMAGES = ImageExperiment()
