"""The routing classification loss as a plain function (paper section 2.2): the readable definition.

The layers do not call it: they produce its gradient in their backward without the labels of shape `(B, X, H, W)`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def routing_labels(
    indices: torch.Tensor, is_correct: torch.Tensor, num_experts: int, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Which experts should have been chosen.

    A rightly chosen expert has the label 1, a wrongly chosen one 0. An expert not chosen has 1 / (X - E) for each wrong
    choice at its pixel, at most 1.

    Args:
        indices: chosen experts `(E, H, W)` or `(B, E, H, W)`.
        is_correct: `(B, E, H, W)`, bool.
        num_experts: X, more than E.
        dtype: of the labels.

    Returns:
        `(B, X, H, W)`.
    """
    B, E, H, W = is_correct.shape
    if num_experts <= E:
        raise ValueError(f"all {num_experts} experts are selected: there is no routing to classify")
    num_wrong = (~is_correct).sum(dim=1, keepdim=True, dtype=dtype)
    labels = (num_wrong / (num_experts - E)).clamp(max=1.0).repeat(1, num_experts, 1, 1)
    return labels.scatter(1, indices.expand(B, E, H, W), is_correct.to(dtype))


def routing_classification_loss(scores: torch.Tensor, indices: torch.Tensor, is_correct: torch.Tensor) -> torch.Tensor:
    """Mean binary cross-entropy of the gate's scores, as logits, against `routing_labels`.

    Args:
        scores: `(X, H, W)` or `(B, X, H, W)`.
        indices: chosen experts `(E, H, W)` or `(B, E, H, W)`.
        is_correct: `(B, E, H, W)`, bool.

    Returns:
        A scalar: the mean over `(B, X, H, W)`.
    """
    labels = routing_labels(indices, is_correct, scores.shape[-3], scores.dtype)
    return F.binary_cross_entropy_with_logits(scores.expand_as(labels), labels)
