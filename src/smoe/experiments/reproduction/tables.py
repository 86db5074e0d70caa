"""Tables of results as data: their rows are recipes, with what the paper prints for them. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from smoe.experiments.paper import PaperResult
from smoe.experiments.recipes import Recipe


@dataclass(frozen=True)
class Row:
    """One line of a table.

    Attributes:
        labels: cells that describe the row, one for each of the table's columns.
        recipe: what is trained, at paper scale and with seed 0.
        paper: what the paper prints; None if it has no such row.
        note: what a reader of the result should know, above all if it differs from the paper's.
    """

    labels: tuple[str, ...]
    recipe: Recipe
    paper: PaperResult | None = None
    note: str = ""

    @property
    def label(self) -> str:
        """The cells as one line."""
        return ", ".join(self.labels)


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
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    source: str = ""
    text: str = ""

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
    """

    name: str
    text: str
    # Of recipes of its own experiment.
    apply: Callable[[Any], Recipe]

    def recipe(self, row: Row, seed: int) -> Recipe:
        """What is trained for a row with a seed."""
        return replace(self.apply(row.recipe), seed=seed)


@dataclass(frozen=True)
class Experiment:
    """All tables of an experiment.

    Attributes:
        name: first part of its tables' names.
        metric: of the test split, that the tables show.
        metric_text: the same for a reader.
        tables: in the order of the paper.
        scales: the sizes it can be run at, the largest first.
    """

    name: str
    metric: str
    metric_text: str
    tables: tuple[ResultTable, ...]
    scales: tuple[Scale, ...]

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
