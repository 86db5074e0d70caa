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
