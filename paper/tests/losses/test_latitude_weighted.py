from __future__ import annotations

import pytest
import torch

from smoe.losses import latitude_weights
from smoe_paper.losses import LatitudeWeightedMSE


def test_arithmetic() -> None:
    # cos 60 = 1/2, cos 0 = 1: mean 3/4, so the weights are 2/3 and 4/3.
    loss = LatitudeWeightedMSE((60.0, 0.0))
    torch.testing.assert_close(loss.weights[:, 0], torch.tensor([2 / 3, 4 / 3], dtype=torch.float64))
    prediction = torch.tensor([[[[1.0, 2.0], [0.0, 3.0]]]])
    target = torch.tensor([[[[0.0, 0.0], [0.0, 0.0]]]])
    # (2/3 (1 + 4) + 4/3 (0 + 9)) / 4 = (10/3 + 36/3) / 4 = 46/12
    torch.testing.assert_close(loss(prediction, target), torch.tensor(46 / 12))


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="from -90 to 90, got 100"):
        latitude_weights((0.0, 100.0))
    with pytest.raises(ValueError, match=r"must be \(B, C, 2, W\), got \(1, 1, 3, 2\)"):
        LatitudeWeightedMSE((0.0, 1.0))(torch.zeros(1, 1, 3, 2), torch.zeros(1, 1, 3, 2))
