"""Score normalisation: none, softmax, absolute value, or both (paper appendix, routing normalisation)."""

from __future__ import annotations

import torch

from smoe.options import Normalization


def normalize_scores(scores: torch.Tensor, normalization: Normalization) -> torch.Tensor:
    """Normalises `(1 or B, X, P)` over the experts; `abs_softmax` takes the absolute value first."""
    if normalization in ("abs", "abs_softmax"):
        scores = scores.abs()
    if normalization in ("softmax", "abs_softmax"):
        scores = scores.softmax(dim=1)
    return scores
