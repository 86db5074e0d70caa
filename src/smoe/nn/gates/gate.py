"""What every gate is: a module that gives each expert a score at each pixel (paper section 2.1)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import nn

from smoe.nn.gates.normalization import normalize_scores
from smoe.nn.probing import Probing
from smoe.options import NORMALIZATIONS, Normalization


class GateScores(NamedTuple):
    """What a gate says.

    Attributes:
        scores: what the routing is decided by, with noise and normalised; at least float32.
        clean: before noise and normalisation.
        noisy: before normalisation.
        noise_std: standard deviation of the noise in `noisy`; 0 without.
    """

    scores: torch.Tensor
    clean: torch.Tensor
    noisy: torch.Tensor
    noise_std: float


class SpatialGate(nn.Module, ABC):
    """A gate: scores `(X, H, W)` if it does not look at its input, `(B, X, H, W)` if it does.

    A gate of your own derives from this class and defines `raw_scores`.

    Args:
        num_experts: X, experts in the bank.
        num_selected: E, experts to choose at each pixel.
        normalization: `none`, `softmax`, `abs` or `abs_softmax`, over the experts.
    """

    looks_at_input: bool = True

    def __init__(self, num_experts: int, num_selected: int, *, normalization: Normalization = "none") -> None:
        super().__init__()
        if num_experts < 1:
            raise ValueError(f"num_experts must be at least 1, got {num_experts}")
        if not 1 <= num_selected <= num_experts:
            raise ValueError(f"num_selected must be in [1, {num_experts}], got {num_selected}")
        if normalization not in NORMALIZATIONS:
            raise ValueError(f"normalization must be one of {', '.join(NORMALIZATIONS)}, got {normalization!r}")
        self.num_experts = num_experts
        self.num_selected = num_selected
        self.normalization: Normalization = normalization
        self.probing: Probing | None = None

    @property
    def spatial_shape(self) -> tuple[int, int] | None:
        """Rows and columns of the output grid the gate was made for; None if it serves any."""
        return None

    def start_probing(self, window: int, confidence: float) -> None:
        """Lets the gate learn by probing, if it can; layers that share it call this one after the other.

        Args:
            window: backward passes until the pixels decide.
            confidence: standard errors by which a trial must be in the challenger's favour.
        """
        del window, confidence
        raise ValueError(
            f"training_rule='probe' learns one choice for each pixel: it needs a TensorGate, got {type(self).__name__}"
        )

    @abstractmethod
    def raw_scores(self, input: torch.Tensor | None) -> torch.Tensor:
        """Scores before noise and normalisation, `(X, H, W)` or `(B, X, H, W)`.

        Args:
            input: the layer's input `(B, C, H, W)`; None only if the gate does not look at it.
        """

    def forward(self, input: torch.Tensor | None = None) -> GateScores:
        """Scores each expert at each pixel, in at least float32."""
        if input is None and self.looks_at_input:
            raise ValueError(f"{type(self).__name__} looks at its input: give it one, (B, C, H, W)")
        clean = self.raw_scores(input)
        if clean.dtype in (torch.float16, torch.bfloat16):
            clean = clean.float()
        noisy, noise_std = self.add_noise(clean, input)
        return GateScores(normalize_scores(noisy, self.normalization), clean, noisy, noise_std)

    def add_noise(self, clean: torch.Tensor, input: torch.Tensor | None) -> tuple[torch.Tensor, float]:
        """The scores with training noise, and its standard deviation: no noise here."""
        del input
        return clean, 0.0

    def extra_repr(self) -> str:
        """The numbers that `repr` shows."""
        text = f"num_experts={self.num_experts}, num_selected={self.num_selected}"
        return text if self.normalization == "none" else f"{text}, normalization={self.normalization!r}"
