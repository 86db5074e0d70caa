"""Cross-entropy: its value by hand, smoothing by its definition, and what it refuses."""

from __future__ import annotations

import pytest
import torch

from smoe_paper.losses import CrossEntropy


def test_smoothing_is_a_mixed_target():
    logits = torch.randn(5, 4)
    classes = torch.tensor([0, 3, 1, 2, 2])
    mixed = 0.9 * torch.nn.functional.one_hot(classes, 4).float() + 0.1 / 4
    smoothed = CrossEntropy(0.1)(logits, classes)
    torch.testing.assert_close(smoothed, CrossEntropy()(logits, mixed))
    torch.testing.assert_close(smoothed, -(mixed * logits.log_softmax(1)).sum(1).mean())


def test_refuses():
    with pytest.raises(ValueError, match=r"label_smoothing must be in \[0, 1\), got 1.0"):
        CrossEntropy(1.0)
    with pytest.raises(ValueError, match=r"got \(4, 3\) and torch.float32 of \(4,\)"):
        CrossEntropy()(torch.zeros(4, 3), torch.zeros(4))
    with pytest.raises(ValueError, match=r"got \(4, 3\) and torch.int64 of \(2,\)"):
        CrossEntropy()(torch.zeros(4, 3), torch.zeros(2, dtype=torch.int64))
