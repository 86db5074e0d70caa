"""The routing classification loss as a plain function (paper section 2.2): the readable definition.

The layers do not call it: they produce its gradient in their backward without the labels of shape `(B, X, P)`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def routing_labels(
    indices: torch.Tensor, is_correct: torch.Tensor, num_experts: int, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Labels of the experts at each pixel.

    A correctly chosen expert has the label 1, a wrongly chosen one 0. An expert that is not chosen has 1 / (X - E) for
    each wrong choice at its pixel, at most 1.

    Args:
        indices: Selected experts `(1 or B, E, P)`.
        is_correct: Whether each choice was right, bool `(B, E, P)`.
        num_experts: X, more than E.
        dtype: Dtype of the labels.

    Returns:
        `(B, X, P)`.
    """
    B, E, P = is_correct.shape
    if num_experts <= E:
        raise ValueError(f"all {num_experts} experts are selected: there is no routing to classify")
    num_wrong = (~is_correct).sum(dim=1, keepdim=True, dtype=dtype)
    labels = (num_wrong / (num_experts - E)).clamp(max=1.0).repeat(1, num_experts, 1)
    return labels.scatter(1, indices.long().expand(B, E, P), is_correct.to(dtype))


def routing_classification_loss(scores: torch.Tensor, indices: torch.Tensor, is_correct: torch.Tensor) -> torch.Tensor:
    """Mean binary cross-entropy of the gate's scores, as logits, against `routing_labels`.

    Args:
        scores: Scores `(1 or B, X, P)`.
        indices: Selected experts `(1 or B, E, P)`.
        is_correct: Whether each choice was right, bool `(B, E, P)`.

    Returns:
        A scalar: the mean over `(B, X, P)`.
    """
    labels = routing_labels(indices, is_correct, scores.shape[1], scores.dtype)
    return F.binary_cross_entropy_with_logits(scores.expand_as(labels), labels)
