"""Optimisers as options of recipes. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AdamL2:
    """The Adam optimiser, with Keras's L2 penalty on convolution kernels.

    Attributes:
        lr: learning rate.
        betas: decay of the averages of the gradient and of its square.
        l2: factor of the sum of the squared kernels, experts and bases among them, in the loss; its gradient is added
            to that of the loss before Adam sees it. Biases, norms, gates and transformers are without.
        gate_lr: learning rate of the gates; None for that of all.
    """

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    l2: float = 1e-5
    gate_lr: float | None = None

    def __post_init__(self) -> None:
        for name in ("lr", "l2", "gate_lr"):
            value = getattr(self, name)
            # `not >=` refuses NaN too.
            if value is not None and not value >= 0.0:
                raise ValueError(f"{name} must not be negative, got {value}")


@dataclass(frozen=True)
class SgdMomentum:
    """Stochastic gradient descent with momentum, as torchvision trains ResNets.

    Attributes:
        lr: learning rate.
        momentum: share of the last step that is added to the next.
        weight_decay: of all parameters but those of norms and gates: a gate is no weight, and scores that shrink
            together would be taken for others that learn.
        gate_lr: learning rate of the gates. The gradient of the RC loss is a mean over all scores of a gate, 2e-6 to
            1e-5 for each score of ResNet-50: the weights' rate would leave the routing as it starts. As a rule, rate x
            `rc_weight` x layers that share the gate / scores of the gate should be about 4e-4 with momentum 0.9; it is
            1e-4 to 1e-3 for the four gates of ResNet-50.
    """

    lr: float = 0.5
    momentum: float = 0.9
    weight_decay: float = 2e-5
    gate_lr: float = 10.0

    def __post_init__(self) -> None:
        for name in ("lr", "weight_decay", "gate_lr"):
            # `not >=` refuses NaN too.
            if not getattr(self, name) >= 0.0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if not 0.0 <= self.momentum < 1.0:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum}")
