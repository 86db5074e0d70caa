"""Training noise on the scores of any gate (paper appendix, auxiliary losses and noise)."""

from __future__ import annotations

import torch

from smoe.nn.gates.gate import SpatialGate


class NoisyGate(SpatialGate):
    """Adds independent normal noise to the scores of another gate in training mode, and none in evaluation mode.

    Every sample draws its own noise, so the routing of a noisy tensor gate differs between samples while it trains.

    Args:
        gate: Gate whose scores receive the noise; its normalisation is applied after the noise.
        std: Standard deviation of the noise; 1 / num_experts if None.
    """

    def __init__(self, gate: SpatialGate, std: float | None = None) -> None:
        super().__init__(gate.num_experts, gate.num_selected, order=gate.order, normalization=gate.normalization)
        if isinstance(gate, NoisyGate):
            raise ValueError("the gate is noisy already; give the larger std to one NoisyGate")
        if std is not None and not std > 0.0:
            raise ValueError(f"std must be positive, got {std}")
        self.gate = gate
        self.std = 1.0 / gate.num_experts if std is None else std
        self.looks_at_input = gate.looks_at_input

    @property
    def spatial_shape(self) -> tuple[int, ...] | None:
        """Grid of the gate that receives the noise."""
        return self.gate.spatial_shape

    def raw_scores(self, input: torch.Tensor | None = None) -> torch.Tensor:
        """Scores of the gate before the noise."""
        return self.gate.raw_scores(input)

    def score_sources(self) -> tuple[torch.Tensor, ...] | None:
        """Parameters of the gate that receives the noise."""
        return self.gate.score_sources()

    def add_noise(self, clean: torch.Tensor, input: torch.Tensor | None) -> tuple[torch.Tensor, float]:
        """The scores with independent noise for each sample of the input."""
        if not self.training or input is None:
            return clean, 0.0
        shape = (input.shape[0], *clean.shape[1:])
        return clean + self.std * torch.randn(shape, dtype=clean.dtype, device=clean.device), self.std

    def extra_repr(self) -> str:
        """The numbers that `repr` shows."""
        return f"{super().extra_repr()}, std={self.std:g}"
