"""Optimisers as options of recipes. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Adam:
    """The Adam optimiser, with an optional L2 penalty on convolution kernels, as in Keras.

    Attributes:
        lr: Learning rate.
        betas: Decay of the averages of the gradient and of its square.
        eps: Number added to the root of the average square; gradients far below it are hardly followed.
        l2: Factor of the sum of the squared kernels in the loss. Experts and bases are kernels; biases, norms, gates
            and transformers are not. Its gradient is added to that of the loss before Adam averages it.
        gate_lr: Learning rate of the gates; None for `lr`.
    """

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    l2: float = 0.0
    gate_lr: float | None = None

    def __post_init__(self) -> None:
        _check_not_negative(self, "lr", "eps", "l2", "gate_lr")


@dataclass(frozen=True)
class SgdMomentum:
    """Stochastic gradient descent with momentum, as torchvision trains ResNets.

    Attributes:
        lr: Learning rate.
        momentum: Share of the last step that is added to the next.
        weight_decay: Weight decay of all parameters but those of norms and gates. A gate is no weight: scores that
            shrink together would change which expert is selected.
        gate_lr: Learning rate of the gates; None for `lr`. The gradient of the RC loss is a mean over all scores of a
            gate, 2e-6 to 1e-5 for each score of ResNet-50, so that the weights' rate would leave the routing as it
            starts. As a rule, rate x weight of the rule x layers that share the gate / scores of the gate should be
            about 4e-4 with momentum 0.9; it is 1e-4 to 1e-3 for the four gates of ResNet-50.
    """

    lr: float = 0.5
    momentum: float = 0.9
    weight_decay: float = 2e-5
    gate_lr: float | None = None

    def __post_init__(self) -> None:
        _check_not_negative(self, "lr", "weight_decay", "gate_lr")
        if not 0.0 <= self.momentum < 1.0:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum}")


def _check_not_negative(options: Adam | SgdMomentum, *names: str) -> None:
    for name in names:
        value = getattr(options, name)
        # `not >=` refuses NaN too.
        if value is not None and not value >= 0.0:
            raise ValueError(f"{name} must not be negative, got {value}")
