"""What an experiment provides: recipes, data, networks, tables, pictures. Imports no torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from smoe_paper.experiments.recipe import Recipe
from smoe_paper.experiments.tables import PublishedResult, ResultTable, Scale, TableSet

if TYPE_CHECKING:
    from torch import Tensor

    from smoe.training.task import Task
    from smoe_paper.experiments.report_parts import ReportParts
    from smoe_paper.experiments.stored_runs import RunStore
    from smoe_paper.experiments.task import DryTask, OpenRun

SPLITS = ("train", "validation", "test")

Notify = Callable[[str], None]
"""Receives messages about what is being done."""


@dataclass(frozen=True)
class EvaluateOptions:
    """Scores a trained run.

    Attributes:
        split: Data to score on.
        checkpoint: The best weights by the validation split, or the last ones.
    """

    split: Literal["test", "validation", "train"] = "test"
    checkpoint: Literal["best", "last"] = "best"


@dataclass(frozen=True)
class ShowOptions:
    """Draws what a run learned into RUN/pictures.

    Attributes:
        checkpoint: The best weights by the validation split, or the last ones.
        split: Data whose predictions are drawn.
    """

    checkpoint: Literal["best", "last"] = "best"
    split: Literal["test", "validation"] = "test"


@dataclass(frozen=True)
class DataCommand:
    """A subcommand of `smoe data` for the data of an experiment.

    Attributes:
        address: `module:function`; it takes the list of arguments and returns an exit code. The module of a `check`
            also has `recognises(path)`.
        text: One line for the help text.
    """

    address: str
    text: str


class Experiment(ABC):
    """One experiment behind one interface. The command line uses nothing else.

    The class attributes are light: they import no torch. The methods import what they need when they are called.
    """

    name: ClassVar[str]
    """First part of the names of its tables."""

    recipe_type: ClassVar[type[Recipe]]
    recipes: ClassVar[Mapping[str, Recipe]]
    """Recipes by their full names, such as `heat/smoe`."""

    tables: ClassVar[TableSet]
    evaluate_options: ClassVar[type[EvaluateOptions]] = EvaluateOptions
    show_options: ClassVar[type[ShowOptions]] = ShowOptions

    draws_splits: ClassVar[bool] = True
    """Whether `draw` needs the data of a split."""

    builds_without_data: ClassVar[bool] = False
    """Whether `build` without splits opens none of the places that the recipe's data name."""

    score_options: ClassVar[type[Any] | None] = None
    """Options of `smoe evaluate NAME`, which scores forecasts of other origin; None if there is nothing of the kind."""

    data_commands: ClassVar[Mapping[tuple[str, str], DataCommand]] = {}
    """Subcommands of `smoe data` by subcommand and name of the data, such as `("prepare", "weather")`."""

    @abstractmethod
    def build(self, recipe: Any, splits: tuple[str, ...] = SPLITS, notify: Notify = print) -> Task:
        """Makes everything that the training loop needs.

        Args:
            recipe: Recipe of this experiment.
            splits: Data to make; none for a model without data.
            notify: Receives messages about what is being made.
        """

    @abstractmethod
    def build_dry(self, recipe: Any) -> DryTask:
        """Makes the task without simulating or reading fields."""

    def published(self, recipe_name: str) -> tuple[PublishedResult, ...]:
        """What the paper prints for a recipe."""
        del recipe_name
        return ()

    def evaluate(self, run: OpenRun, options: Any) -> None:
        """Scores a run, which was opened with the split of the options, and prints a table."""
        from smoe_paper.experiments.result_table import print_result

        values = run.evaluate(options.split)
        print_result(run.name, options.split, values, run.directory.path, self.published(run.name))

    def predict(self, run: OpenRun, split: str) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields predictions and truths of a split in physical units, batch by batch; here, as the network has them."""
        return run.predict(split)

    def score(self, options: Any) -> None:
        """Scores forecasts of other origin and prints a table; see `score_options`."""
        raise NotImplementedError(f"{self.name} has nothing to score but runs; options were {options}")

    @abstractmethod
    def draw(self, run: OpenRun, options: Any) -> list[Path]:
        """Draws what a run learned into its folder and returns the pictures."""

    def report_parts(self, run: OpenRun, split: str | None, notify: Notify = print) -> ReportParts:
        """Returns what only the experiment knows about a run, for its report; here, nothing.

        Args:
            run: Run, opened with the split.
            split: Split that is scored; None for a report without data.
            notify: Receives messages about what is being measured.
        """
        from smoe_paper.experiments.report_parts import ReportParts

        del run, split, notify
        return ReportParts()

    def prepare_evaluation(self, options: Any) -> None:  # noqa: B027 (most experiments have nothing to check)
        """Checks the options of `smoe evaluate` before anything is loaded."""

    def store_references(  # noqa: B027 (most experiments have none)
        self, tables: Iterable[ResultTable], scale: Scale, data: Path, store: RunStore, notify: Notify
    ) -> None:
        """Scores the forecasts without training that the tables show, unless they are stored."""

    def draw_tables(
        self, tables: Sequence[ResultTable], store: RunStore, runs_dir: Path, output_dir: Path, data: Path
    ) -> list[Path]:
        """Draws the figures of tables from stored runs and returns the pictures.

        Args:
            tables: Tables to draw.
            store: Results of the runs.
            runs_dir: Folder of the runs that were made here.
            output_dir: Folder for the pictures.
            data: Place of the data.
        """
        from smoe_paper.experiments.table_report import draw_figures

        del runs_dir, data
        return draw_figures(self.tables, tables, store, output_dir)

    def default_data(self, runs_dir: Path) -> Path | None:
        """Folder of the data if the user names none; None if they have to."""
        del runs_dir
        return None

    @property
    def data_remedy(self) -> str:
        """What to do where no data are named."""
        return f"smoe data prepare {self.name} makes a store"
