"""End-to-end training as a rule (paper, table 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from smoe.rules.rule import Rule


@dataclass(frozen=True)
class EndToEnd(Rule):
    """The scores of the selected experts receive the error signal, times their outputs if these are weighted."""

    name: ClassVar[str] = "end_to_end"
    learner: ClassVar[str] = "smoe.nn._classification:EndToEndLearner"
