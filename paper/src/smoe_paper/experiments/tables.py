"""Tables of results as data: their rows are recipes, with what the paper prints for them. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from smoe_paper.experiments.recipe import Recipe


@dataclass(frozen=True)
class PublishedResult:
    """A result that a publication prints.

    Attributes:
        metric: Name of the metric here.
        mean: Mean over the publication's runs.
        spread: Standard deviation over the publication's runs.
        epochs: Number of epochs; None if it is not printed.
        source: Place in the publication.
    """

    metric: str
    mean: float
    spread: float
    epochs: int | None
    source: str


@dataclass(frozen=True)
class ShownMetric:
    """A metric of the test split that tables show.

    Attributes:
        name: Name in the results of a run.
        heading: Heading before `paper` and `here`; empty if it is the only metric.
        decimals: Number of decimals that are printed.
        is_percentage: Whether it is complete at 100: 100.0 is then printed for exactly 100 only.
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
        labels: Cells that describe the row, one for each of the table's columns.
        recipe: Recipe to train, at paper scale and with seed 0.
        paper: Results that the paper prints, for some of the metrics.
    """

    labels: tuple[str, ...]
    recipe: Recipe
    paper: tuple[PublishedResult, ...] = ()

    @property
    def label(self) -> str:
        """The cells as one line."""
        return ", ".join(self.labels)

    def paper_result(self, metric: str) -> PublishedResult | None:
        """The result that the paper prints for a metric."""
        return next((result for result in self.paper if result.metric == metric), None)


@dataclass(frozen=True)
class ResultTable:
    """A table.

    Attributes:
        name: Name on the command line, such as `heat/gates`.
        title: Title of the table.
        columns: Headings of the rows' labels.
        rows: Lines of the table.
        source: Place in the paper; empty for a table that the paper does not have.
        text: Description of the set-up. Statements about results belong into `notes.md` beside the results.
        references: Names of stored results without training, which are shown above the rows.
        metrics: Metrics to show instead of those of the whole set of tables.
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

    @property
    def short_name(self) -> str:
        """The name within the experiment, such as `gates`."""
        return self.name.partition("/")[2]


@dataclass(frozen=True)
class Scale:
    """A size of the experiment.

    Attributes:
        name: Name on the command line.
        text: Description for the reader of a table.
        apply: Turns a recipe at paper scale into the same at this one.
        is_comparable: Whether the paper's numbers come from the same data, so that a difference matters.
    """

    name: str
    text: str
    # Takes recipes of its own experiment.
    apply: Callable[[Any], Recipe]
    is_comparable: bool = True

    def recipe(self, row: Row, seed: int) -> Recipe:
        """The recipe to train for a row with a seed."""
        return replace(self.apply(row.recipe), seed=seed)


@dataclass(frozen=True)
class TableSet:
    """All tables of an experiment.

    Attributes:
        name: Name of the experiment, the first part of its tables' names.
        metrics: Metrics that the tables show.
        metric_text: Description of the metrics.
        tables: Tables in the order of the paper.
        scales: Sizes at which the experiment can be run, the largest first.
        data_field: Field of a recipe's data that holds the place of the data.
        data_folder: Place of a recipe's data in the folder that a user names; that folder itself if not given.
    """

    name: str
    metrics: tuple[ShownMetric, ...]
    metric_text: str
    tables: tuple[ResultTable, ...]
    scales: tuple[Scale, ...]
    data_field: str
    data_folder: Callable[[Any, Path], Path] | None = None

    def with_data(self, recipe: Recipe, path: Path) -> Recipe:
        """The recipe with the place of its data."""
        path = path if self.data_folder is None else self.data_folder(recipe.data, path)
        return replace(recipe, data=replace(recipe.data, **{self.data_field: path}))

    def select(self, name: str) -> list[ResultTable]:
        """All tables for the experiment's name, one table for its own.

        Raises:
            ValueError: If there is none; with the names.
        """
        chosen = [table for table in self.tables if name in (self.name, table.name)]
        if not chosen:
            known = ", ".join(table.name for table in self.tables)
            raise ValueError(f"no table named {name!r}; there are {self.name} (all of them), {known}")
        return chosen

    def scale(self, name: str) -> Scale:
        """The scale of that name.

        Raises:
            ValueError: If there is none; with the names.
        """
        for scale in self.scales:
            if scale.name == name:
                return scale
        raise ValueError(f"no scale named {name!r}; there are {', '.join(scale.name for scale in self.scales)}")
