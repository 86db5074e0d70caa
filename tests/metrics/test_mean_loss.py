from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from smoe.metrics import MeanLoss


def test_a_small_last_batch_weighs_no_more_than_its_samples() -> None:
    metric = MeanLoss(F.mse_loss)
    first = metric.totals(torch.tensor([[1.0], [3.0]]), torch.zeros(2, 1))
    last = metric.totals(torch.tensor([[2.0]]), torch.zeros(1, 1))
    # (1 + 9 + 4) / 3
    assert metric.values(first + last)["loss"] == pytest.approx(14 / 3)
