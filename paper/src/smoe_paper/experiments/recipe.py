"""What every recipe holds, whichever experiment it belongs to. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from smoe._plain import to_plain
from smoe.rules import Damping, RoutingClassification, Rule
from smoe.training.plan import TrainingPlan
from smoe_paper.experiments.optimizers import Adam, SgdMomentum


@dataclass(frozen=True)
class AuxiliaryLosses:
    """Losses that spread the work over the experts of SMoE layers (paper appendix C).

    Attributes:
        importance: Equal weights for all experts.
        load: Equal numbers of pixels for all experts; needs gate noise.
        spatial_agreement: The same weights in all samples.
        weight: Factor of their sum.
    """

    importance: bool = False
    load: bool = False
    spatial_agreement: bool = False
    weight: float = 0.01

    @property
    def is_any(self) -> bool:
        """Whether one of them is on."""
        return self.importance or self.load or self.spatial_agreement


@dataclass(frozen=True)
class Recipe:
    """What to train. An experiment derives its own recipe and narrows the types of `data` and `model`.

    Attributes:
        data: Data to learn from.
        model: Network.
        rule: How the gates of SMoE layers learn, such as probe or "probe(window=4)".
        damping: Damping of the experts' error, such as 0.1; None for the damping that the rule carries.
        routing_warmup_epochs: Number of epochs before the gates learn and errors are damped.
        auxiliary: Further losses of the routing.
        optimizer: Optimiser of all parameters.
        training: Batches, schedule and stopping.
        init_from: Run directory whose best weights are the start, with a new optimiser; None for random weights.
        seed: Seed of the initial weights and of the shuffles.
    """

    experiment: ClassVar[str] = ""
    """Name of the experiment, as registered."""

    data: Any = None
    model: Any = None
    rule: Rule = field(default_factory=RoutingClassification.paper)
    damping: Damping | None = None
    routing_warmup_epochs: int = 0
    auxiliary: AuxiliaryLosses = field(default_factory=AuxiliaryLosses)
    optimizer: Adam | SgdMomentum = field(default_factory=Adam)
    training: TrainingPlan = field(default_factory=TrainingPlan)
    init_from: Path | None = None
    seed: int = 0

    def plain(self) -> dict[str, Any]:
        """Every field and the name of the experiment, as dictionaries, lists, numbers and text."""
        return {"experiment": self.experiment, **to_plain(self)}

    def __post_init__(self) -> None:
        if self.routing_warmup_epochs < 0:
            raise ValueError(f"routing_warmup_epochs must not be negative, got {self.routing_warmup_epochs}")
