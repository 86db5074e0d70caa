"""What every recipe holds, whichever experiment it belongs to. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from smoe.options import BiasOwner, GateInit, Order
from smoe.rules import Damping, RoutingClassification, Rule
from smoe.training import to_plain
from smoe.training.plan import TrainingPlan


@dataclass(frozen=True)
class Adam:
    """The Adam optimiser, with an optional L2 penalty on convolution kernels, as in Keras."""

    lr: float = 1e-3  # Learning rate.
    betas: tuple[float, float] = (0.9, 0.999)  # Decay of the averages of the gradient and of its square.
    eps: float = 1e-8  # Number added to the root of the average square; gradients far below it are hardly followed.
    # Factor of the sum of the squared kernels in the loss. Experts and bases are kernels; biases, norms, gates and
    # transformers are not. Its gradient is added to that of the loss before Adam averages it.
    l2: float = 0.0
    gate_lr: float | None = None  # Learning rate of the gates; None for `lr`.

    def __post_init__(self) -> None:
        for name in ("lr", "eps", "l2", "gate_lr"):
            value = getattr(self, name)
            # `not >=` refuses NaN too.
            if value is not None and not value >= 0.0:
                raise ValueError(f"{name} must not be negative, got {value}")


@dataclass(frozen=True)
class AuxiliaryLosses:
    """Losses that spread the work over the experts of SMoE layers (paper appendix C)."""

    importance: bool = False  # Equal weights for all experts.
    load: bool = False  # Equal numbers of pixels for all experts; needs gate noise.
    spatial_agreement: bool = False  # The same weights in all samples.
    weight: float = 0.01  # Factor of their sum.

    @property
    def is_any(self) -> bool:
        return self.importance or self.load or self.spatial_agreement


@dataclass(frozen=True)
class Recipe:
    """What to train. An experiment derives its own recipe and narrows the types of `data` and `model`.

    Attributes:
        data: Data to learn from.
        model: Network.
        rule: How the gates of SMoE layers learn, such as rc or "rc(error_quantile=0.4)".
        damping: Damping of the experts' error, such as 0.1; None for the damping that the rule carries.
        auxiliary: Further losses of the routing.
        optimizer: Optimiser of all parameters.
        training: Batches, schedule and stopping.
        seed: Seed of the initial weights and of the shuffles.
    """

    experiment: ClassVar[str] = ""
    """Name of the experiment, as registered."""

    data: Any = None
    model: Any = None
    rule: Rule = field(default_factory=RoutingClassification.paper)
    damping: Damping | None = None
    auxiliary: AuxiliaryLosses = field(default_factory=AuxiliaryLosses)
    optimizer: Adam = field(default_factory=Adam)
    training: TrainingPlan = field(default_factory=TrainingPlan)
    seed: int = 0

    def plain(self) -> dict[str, Any]:
        """Every field and the name of the experiment, as dictionaries, lists, numbers and text."""
        plain = {"experiment": self.experiment, **to_plain(self)}
        # Stored runs name the optimiser, of which there were two.
        return {**plain, "optimizer": {"type": "Adam", **plain["optimizer"]}}

    def pretraining(self) -> Recipe | None:
        """What is trained before, with whose best weights the training begins; None for random weights."""
        return None


@dataclass(frozen=True)
class GateOptions:
    """SMoE layers and their gates."""

    expert_ratio: float = 2.0  # Experts in the bank for each filter of the layer that is replaced or stands before.
    # `tensor`, a table of scores; `factorised`, a few numbers for each pixel; `random`, a table that stays as it
    # starts.
    gate: Literal["tensor", "factorised", "random"] = "tensor"
    # Start of the gate: `kaiming` (white noise), `paper`, `smooth`, or `uniform`, the first expert everywhere.
    gate_init: GateInit = "kaiming"
    # Correlation length of a smooth start in pixels; None for an eighth of the rows.
    correlation_length: float | None = None
    order: Order = "score"  # Order of the selected experts: `score`, `index`, or `families`.
    rank: int = 8  # Numbers for each pixel of a factorised gate.
    # Owner of the biases: `slot`, one for each output channel, where the layer it stands for has them; or `expert`, one
    # for each expert.
    bias: BiasOwner = "slot"
    local_affine: bool = False  # Multiply each output channel by a learned number at each pixel, and add another.

    def __post_init__(self) -> None:
        if not self.expert_ratio >= 1.0:
            raise ValueError(f"expert_ratio must be at least 1, as many experts as filters, got {self.expert_ratio}")
        if self.correlation_length is not None and self.gate_init != "smooth":
            raise ValueError(f"correlation_length belongs to gate_init='smooth', but gate_init is {self.gate_init!r}")
        if self.rank < 1:
            raise ValueError(f"rank must be at least 1, got {self.rank}")


def check_year_ranges(data: Any, names: tuple[str, ...] = ("train_years", "validation_years", "test_years")) -> None:
    for name in names:
        first, last = getattr(data, name)
        if first > last:
            raise ValueError(f"{name} must be the first and the last year, got {first} and {last}")
