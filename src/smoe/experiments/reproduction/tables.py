"""Tables of results as data: their rows are recipes, with what the paper prints for them. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from smoe.experiments.paper import PaperResult
from smoe.experiments.recipes import Recipe


@dataclass(frozen=True)
class ShownMetric:
    """A metric of the test split that tables show.

    Attributes:
        name: in the results of a run.
        heading: before `paper` and `here` in the table's head; empty if it is the only one.
        decimals: that are printed.
        is_percentage: of something that is complete at 100: 100.0 is then printed of exactly 100 only.
    """

    name: str
    heading: str = ""
    decimals: int = 1
    is_percentage: bool = False

    def column(self, kind: str) -> str:
        """The heading of a column of the paper's or of our numbers."""
        return f"{self.heading}: {kind}" if self.heading else kind


@dataclass(frozen=True)
class Row:
    """One line of a table.

    Attributes:
        labels: cells that describe the row, one for each of the table's columns.
        recipe: what is trained, at paper scale and with seed 0.
        paper: what the paper prints, for some of the metrics; nothing if it has no such row.
        note: what a reader of the result should know, above all if it differs from the paper's.
    """

    labels: tuple[str, ...]
    recipe: Recipe
    paper: tuple[PaperResult, ...] = ()
    note: str = ""

    @property
    def label(self) -> str:
        """The cells as one line."""
        return ", ".join(self.labels)

    def paper_result(self, metric: str) -> PaperResult | None:
        """What the paper prints of a metric."""
        return next((result for result in self.paper if result.metric == metric), None)


@dataclass(frozen=True)
class ResultTable:
    """A table.

    Attributes:
        name: on the command line, `heat/gates`.
        title: what it shows.
        columns: headings of the rows' labels.
        rows: its lines.
        source: where it stands in the paper; empty for a table of our own.
        text: what is to be said of the whole.
        references: forecasts that are not trained, to be shown above the rows, by the names of their stored results.
        metrics: to show instead of the experiment's.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    source: str = ""
    text: str = ""
    references: tuple[str, ...] = ()
    metrics: tuple[ShownMetric, ...] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row.labels) != len(self.columns):
                raise ValueError(f"{self.name}: {row.labels} does not fit the columns {self.columns}")


@dataclass(frozen=True)
class Scale:
    """A size of the experiment.

    Attributes:
        name: on the command line.
        text: what it means, for the reader of a table.
        apply: a recipe at paper scale to the same at this one.
        is_comparable: whether the paper's numbers are of the same data, so that a difference wants an explanation.
    """

    name: str
    text: str
    # Of recipes of its own experiment.
    apply: Callable[[Any], Recipe]
    is_comparable: bool = True

    def recipe(self, row: Row, seed: int) -> Recipe:
        """What is trained for a row with a seed."""
        return replace(self.apply(row.recipe), seed=seed)


@dataclass(frozen=True)
class Experiment:
    """All tables of an experiment.

    Attributes:
        name: first part of its tables' names.
        metrics: that the tables show.
        metric_text: what they are, for a reader.
        tables: in the order of the paper.
        scales: the sizes it can be run at, the largest first.
        data_field: of a recipe's data, that says where they are kept.
        data_folder: where in the folder that a user names a recipe's data are; that folder itself if not given.
    """

    name: str
    metrics: tuple[ShownMetric, ...]
    metric_text: str
    tables: tuple[ResultTable, ...]
    scales: tuple[Scale, ...]
    data_field: str
    data_folder: Callable[[Any, Path], Path] | None = None

    def with_data(self, recipe: Recipe, path: Path) -> Recipe:
        """The recipe with its data kept there."""
        data: Any = recipe.data
        path = path if self.data_folder is None else self.data_folder(data, path)
        return replace(recipe, data=replace(data, **{self.data_field: path}))

    def select(self, name: str) -> list[ResultTable]:
        """All tables for the experiment's name, one for its own.

        Raises:
            ValueError: if there is none; with the names.
        """
        chosen = [table for table in self.tables if name in (self.name, table.name)]
        if not chosen:
            known = ", ".join(table.name for table in self.tables)
            raise ValueError(f"no table named {name!r}; there are {self.name} (all of them), {known}")
        return chosen

    def scale(self, name: str) -> Scale:
        """The scale of that name.

        Raises:
            ValueError: if there is none; with the names.
        """
        for scale in self.scales:
            if scale.name == name:
                return scale
        raise ValueError(f"no scale named {name!r}; there are {', '.join(scale.name for scale in self.scales)}")
