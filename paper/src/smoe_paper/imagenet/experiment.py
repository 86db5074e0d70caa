"""Classification of ImageNet as an experiment (paper section 3.4)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from smoe_paper.experiments.experiment import SPLITS, DataCommand, Experiment, Notify, ShowOptions
from smoe_paper.experiments.tables import PublishedResult, TableSet
from smoe_paper.imagenet.recipes import IMAGENET_RECIPES, PUBLISHED, ImageNetRecipe
from smoe_paper.imagenet.tables import IMAGENET_TABLES

if TYPE_CHECKING:
    from smoe.training.task import Task
    from smoe_paper.experiments.report_parts import ReportParts
    from smoe_paper.experiments.task import DryTask, OpenRun


class ImageNetExperiment(Experiment):
    """Classification of class folders of images, which the user provides."""

    name: ClassVar[str] = "imagenet"
    recipe_type = ImageNetRecipe
    recipes = IMAGENET_RECIPES
    tables: ClassVar[TableSet] = IMAGENET_TABLES
    data_commands: ClassVar[Mapping[tuple[str, str], DataCommand]] = {
        ("check", "imagenet"): DataCommand("smoe_paper.imagenet.check:run_check", "class folders, train and val"),
    }

    def build(self, recipe: ImageNetRecipe, splits: tuple[str, ...] = SPLITS, notify: Notify = print) -> Task:
        """Lists the images and makes the network."""
        from smoe_paper.imagenet.model import build_task

        return build_task(recipe, splits, notify)

    def build_dry(self, recipe: ImageNetRecipe) -> DryTask:
        """Makes the network, for the published ImageNet if no folder is named."""
        from smoe_paper.imagenet.model import build_dry_task

        return build_dry_task(recipe)

    def published(self, recipe_name: str) -> tuple[PublishedResult, ...]:
        """Returns the result that the paper prints for a recipe."""
        return (PUBLISHED[recipe_name],) if recipe_name in PUBLISHED else ()

    def draw(self, run: OpenRun, options: ShowOptions) -> list[Path]:
        """Draws accuracies by epoch, and the routing over mean images."""
        from smoe_paper.imagenet.pictures import draw_run

        return draw_run(run, options.split)

    def report_parts(self, run: OpenRun, split: str | None, notify: Notify = print) -> ReportParts:
        """Returns mean images of some classes."""
        from smoe_paper.imagenet.pictures import report_parts

        del notify
        return report_parts(run, split)

    @property
    def data_remedy(self) -> str:
        """Describes the folder that the user has to provide."""
        return "a folder with train/<class>/*.JPEG and val/<class>/*.JPEG"


IMAGENET = ImageNetExperiment()
