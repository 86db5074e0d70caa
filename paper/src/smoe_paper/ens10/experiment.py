"""Post-processing of ensembles as an experiment (paper section 3.3)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from smoe_paper.ens10.recipes import ENSEMBLE_RECIPES, EnsembleRecipe
from smoe_paper.ens10.tables import ENS10_TABLES
from smoe_paper.experiments.experiment import SPLITS, DataCommand, EvaluateOptions, Experiment, Notify, ShowOptions
from smoe_paper.experiments.stored_runs import RunStore
from smoe_paper.experiments.tables import ResultTable, Scale, TableSet

if TYPE_CHECKING:
    from torch import Tensor

    from smoe.training.task import Task
    from smoe_paper.experiments.experiment import ReportParts
    from smoe_paper.experiments.task import DryTask, OpenRun


@dataclass(frozen=True)
class EnsembleScoreOptions:
    """Scores the raw ensemble of a store.

    smoe evaluate ens10 --ensemble stores/t850-10 --years 2016 2017

    Attributes:
        ensemble: Folder that `smoe data prepare ens10` made.
        years: First and last year, by the dates for which forecasts are valid; the default is all years after training.
    """

    ensemble: Path
    years: tuple[int, int] | None = None


class EnsembleExperiment(Experiment):
    """Post-processing of ensemble forecasts, on ENS-10 or a simulated ensemble."""

    name: ClassVar[str] = "ens10"
    recipe_type = EnsembleRecipe
    recipes = ENSEMBLE_RECIPES
    tables: ClassVar[TableSet] = ENS10_TABLES
    score_options = EnsembleScoreOptions
    data_commands: ClassVar[Mapping[tuple[str, str], DataCommand]] = {
        ("check", "ens10"): DataCommand("smoe_paper.ens10.commands:run_check", "ENS-10, preprocessed or as downloaded"),
        ("prepare", "ens10"): DataCommand(
            "smoe_paper.ens10.commands:run_prepare", "--root DATA --output STORE --task z500 [--members 10]"
        ),
    }

    def build(self, recipe: EnsembleRecipe, splits: tuple[str, ...] = SPLITS, notify: Notify = print) -> Task:
        """Opens the store and makes the model."""
        from smoe_paper.ens10.model import build_task

        return build_task(recipe, splits, notify)

    def build_dry(self, recipe: EnsembleRecipe) -> DryTask:
        """Makes the model, for ENS-10's geopotential if no store is named."""
        from smoe_paper.ens10.model import build_dry_task

        return build_dry_task(recipe)

    def evaluate(self, run: OpenRun, options: EvaluateOptions) -> None:
        """Prints the scores beside those of the raw ensemble and the paper's."""
        from smoe_paper.ens10.scores import print_run_scores

        print_run_scores(run, options.split)

    def predict(self, run: OpenRun, split: str) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields mean and standard deviation `(B, 2, H, W)` and the truth `(B, H, W)`, in physical units."""
        import torch

        from smoe_paper.losses import gaussian_head

        for output, target in super().predict(run, split):
            yield torch.stack(gaussian_head(output, target[:, 1], target[:, 2]), dim=1), target[:, 0]

    def score(self, options: EnsembleScoreOptions) -> None:
        """Scores the ensemble of a store."""
        from smoe_paper.ens10.scores import print_store_scores

        print_store_scores(options.ensemble, options.years)

    def draw(self, run: OpenRun, options: ShowOptions) -> list[Path]:
        """Draws scores by epoch, calibration beside the raw ensemble's, and maps of the CRPS."""
        from smoe_paper.ens10.pictures import draw_run

        return draw_run(run, options.split)

    def report_parts(self, run: OpenRun, split: str | None, notify: Notify = print) -> ReportParts:
        """Returns the globe, the raw ensemble's scores, and the CRPS of both at each pixel."""
        from smoe_paper.ens10.pictures import report_parts

        return report_parts(run, split, notify)

    def store_references(
        self, tables: Iterable[ResultTable], scale: Scale, data: Path, store: RunStore, notify: Notify
    ) -> None:
        """Scores the raw ensembles."""
        from smoe_paper.ens10.scores import store_references

        store_references(tables, scale, data, store, notify)


ENS10 = EnsembleExperiment()
