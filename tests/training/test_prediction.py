from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset, TensorDataset

from smoe.training.task import predict

PAIRS = TensorDataset(torch.arange(7.0)[:, None], 10.0 * torch.arange(7.0)[:, None])


def double() -> nn.Linear:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 2.0)
    return model


def test_predictions_come_in_order_with_their_targets() -> None:
    batches = list(predict(double(), PAIRS, 3))
    assert [len(target) for _, target in batches] == [3, 3, 1]
    assert torch.cat([prediction for prediction, _ in batches]).flatten().tolist() == [0, 2, 4, 6, 8, 10, 12]
    assert torch.cat([target for _, target in batches]).flatten().tolist() == [0, 10, 20, 30, 40, 50, 60]


def test_each_sample_is_predicted_by_one_process() -> None:
    shares = [
        [
            float(value)
            for _, target in predict(double(), PAIRS, 2, process=process, num_processes=3)
            for value in target
        ]
        for process in range(3)
    ]
    assert sorted(value for share in shares for value in share) == [0, 10, 20, 30, 40, 50, 60]
    assert len(shares) == 3 and all(shares)


def test_the_model_evaluates_without_gradients_and_the_caller_keeps_its_mode() -> None:
    model = nn.Sequential(double(), nn.Dropout(0.9)).train()
    for prediction, _ in predict(model, PAIRS, 4):
        assert not prediction.requires_grad and not model.training
        assert torch.is_grad_enabled()


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        next(predict(double(), PAIRS, 0))

    class Endless(IterableDataset):
        def __iter__(self) -> Iterator[int]:
            return itertools.count()

    with pytest.raises(TypeError, match="Endless has no length"):
        next(predict(double(), Endless(), 1))
