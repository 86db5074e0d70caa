"""A gate that does not learn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from smoe.rules.rule import Rule


@dataclass(frozen=True)
class Frozen(Rule):
    """The gate stays as it is."""

    name: ClassVar[str] = "frozen"
    learner: ClassVar[str] = "smoe.nn._classification:FrozenLearner"
