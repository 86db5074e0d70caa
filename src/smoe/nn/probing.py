"""Probing: a gate learns by trying, at every pixel, experts that are not selected.

The routing-classification loss says that a choice was wrong, not which one would have been right. Probing evaluates one
more expert at every pixel and asks the error signal what it would have done to the loss (`smoe.ops.probe_routing`).
After a window of backward passes, each pixel exchanges its incumbent for the challenger if that lowers the loss, and
meets the next. No quantile, no tolerance, no damping: only signs and ratios decide, so the unit of the data is without
effect.
"""

from __future__ import annotations

import weakref
from typing import Protocol

import torch
from torch import nn

from smoe.ops.probe_routing import Challenge, Observation, draw_challenge, exchange_scores

# An expert that serves less than this share of what an equal division would give it starts anew.
_DEAD_SHARE = 0.03
# Windows between two restarts, at least: the last one must have had the time to find its pixels.
_RESTART_WINDOWS = 16
# Share of the past that a window leaves in the experts' costs.
_COST_DECAY = 0.9


class Bank(Protocol):
    """A layer whose experts can start anew."""

    def restart_expert(self, expert: int, source: int, generator: torch.Generator) -> None:
        """Makes an expert a slightly changed copy of another."""


class Probing(nn.Module):
    """The state of probing, held by the gate: layers that share a gate share the trial and add up what they see.

    Everything is in buffers, so a checkpoint taken at any step resumes exactly. Several processes add up what they see
    in each backward pass and so decide alike.

    Args:
        num_experts: X.
        num_selected: E.
        spatial_shape: H and W.
        window: backward passes until the pixels decide.
        confidence: standard errors by which a trial must be in the challenger's favour.
        device: of the state.
    """

    evidence: torch.Tensor
    squares: torch.Tensor
    costs: torch.Tensor
    counts: torch.Tensor

    def __init__(
        self,
        num_experts: int,
        num_selected: int,
        spatial_shape: tuple[int, int],
        window: int,
        confidence: float,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.num_experts = num_experts
        self.num_selected = num_selected
        self.window = window
        self.confidence = confidence
        # The estimated change of the loss by each pixel's exchange, and the squares that say how uncertain it is.
        self.register_buffer("evidence", torch.zeros(spatial_shape, device=device))
        self.register_buffer("squares", torch.zeros(spatial_shape, device=device))
        # How much error each expert's pixels carry.
        self.register_buffer("costs", torch.zeros(num_experts, device=device))
        # Windows done, backward passes in this window, windows until an expert may restart, and restarts.
        self.register_buffer("counts", torch.zeros(4, dtype=torch.int64, device=device))
        self._challenge: Challenge | None = None
        # The experts selected in this window.
        self.indices = torch.empty(0)
        self._decided_by: tuple[int, int] | None = None
        self._observers: list[weakref.ref[Bank]] = []

    @property
    def num_windows(self) -> int:
        """Decisions so far."""
        return int(self.counts[0])

    @property
    def num_passes(self) -> int:
        """Backward passes in this window."""
        return int(self.counts[1])

    @property
    def num_restarts(self) -> int:
        """Experts that started anew."""
        return int(self.counts[3])

    def challenge(self, scores: torch.Tensor, indices: torch.Tensor) -> Challenge:
        """Who is tried where in this window.

        Args:
            scores: the gate's, `(X, H, W)`.
            indices: the experts they select, `(E, H, W)`.
        """
        decided_by = (scores.data_ptr(), scores._version)
        if self._challenge is not None and decided_by != self._decided_by:
            # Somebody else changed the scores: what was seen so far is about another choice.
            self.evidence.zero_()
            self.squares.zero_()
            self._challenge = None
        if self._challenge is None:
            self._challenge = draw_challenge(indices, self.num_experts, self.num_windows)
            self.indices, self._decided_by = indices, decided_by
        return self._challenge

    def add(self, observer: Bank, seen: Observation, costs: torch.Tensor | None, curvature: float) -> None:
        """Takes what one layer saw in one backward pass.

        Args:
            observer: the layer.
            seen: by it, of all processes.
            costs: of each expert, `(X,)`, if the layer looked.
            curvature: of the loss, along the layer's differences.
        """
        self.evidence += seen.slopes + 0.5 * curvature * seen.sizes
        self.squares += seen.squares
        if costs is not None:
            self.costs += costs
        self._observers.append(weakref.ref(observer))

    @torch.no_grad()
    def end_pass(self, scores: torch.Tensor) -> None:
        """Called when a backward pass is complete, as often as one likes: ends the window if it is time.

        Args:
            scores: the gate's, `(X, H, W)`; changed in place where pixels decide for another expert.
        """
        if not self._observers:
            return
        observers = {id(bank): bank for bank in (reference() for reference in self._observers) if bank is not None}
        self._observers = []
        self.counts[1] += 1
        if self.num_passes < self.window or self._challenge is None:
            return
        is_better = self.evidence < -self.confidence * self.squares.sqrt()
        exchange_scores(scores, self.indices, self._challenge, is_better)
        self._restart_dead_expert(self._challenge, is_better, list(observers.values()))
        self.evidence.zero_()
        self.squares.zero_()
        self.costs *= _COST_DECAY
        self.counts[0] += 1
        self.counts[1] = 0
        self._challenge = None

    def _restart_dead_expert(self, challenge: Challenge, is_better: torch.Tensor, banks: list[Bank]) -> None:
        """Without it, a bank can settle with some of its experts while the others never get a pixel to learn from."""
        self.counts[2] -= 1
        if int(self.counts[2]) > 0:
            return
        indices, slots = self.indices.long(), challenge.slots[None]
        settled = indices.scatter(0, slots, torch.where(is_better, challenge.experts.long(), indices.gather(0, slots)))
        num_pixels = torch.bincount(settled.flatten(), minlength=self.num_experts)
        expert = int(num_pixels.argmin())
        if int(num_pixels[expert]) >= _DEAD_SHARE * settled.numel() / self.num_experts:
            return
        source = int(self.costs.argmax())
        if source == expert:
            return
        # Of its own, so that it neither disturbs the user's random numbers nor differs between processes.
        generator = torch.Generator().manual_seed(self.num_windows)
        for bank in banks:
            bank.restart_expert(expert, source, generator)
        # Ever more rarely: a bank may have more experts than the data need.
        self.counts[2] = max(_RESTART_WINDOWS, self.num_windows // _RESTART_WINDOWS)
        self.counts[3] += 1

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
    ) -> None:
        # What was drawn before belongs to another state.
        self._challenge = None
        if not any(key.startswith(prefix) for key in state_dict):
            return  # from a gate that learned otherwise: the first window begins
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_observers": [], "_challenge": None}
