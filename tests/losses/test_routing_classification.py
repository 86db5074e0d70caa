from __future__ import annotations

import math

import pytest
import torch

from definitions import define_routing
from smoe.losses.routing_classification import routing_classification_loss, routing_labels


def test_labels_by_hand():
    # Four experts, experts 2 and 0 chosen. Sample 0: both right; sample 1: 0 wrong; sample 2: both wrong.
    indices = torch.tensor([2, 0]).reshape(1, 2, 1)
    is_correct = torch.tensor([[True, True], [True, False], [False, False]]).reshape(3, 2, 1)
    # The label of an unselected expert is (number of wrong choices) / (4 - 2).
    expected = [[1.0, 0.0, 1.0, 0.0], [0.0, 0.5, 1.0, 0.5], [0.0, 1.0, 0.0, 1.0]]
    assert routing_labels(indices, is_correct, 4).flatten(1).tolist() == expected
    assert routing_labels(indices.expand(3, 2, 1), is_correct, 4).flatten(1).tolist() == expected


def test_labels_are_at_most_one():
    indices = torch.arange(3).reshape(1, 3, 1)
    labels = routing_labels(indices, torch.zeros(1, 3, 1, dtype=torch.bool), 4)
    assert labels.flatten().tolist() == [0.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize("num_selected", [1, 2, 4])
def test_labels_equal_loops(num_selected):
    torch.manual_seed(0)
    indices = torch.rand(2, 5, 12).argsort(dim=1)[:, :num_selected].int()
    definition = define_routing(torch.randn(2, num_selected, 12, dtype=torch.float64), indices, 5)
    actual = routing_labels(indices, ~definition.is_wrong, 5, torch.float64)
    assert torch.equal(actual, definition.labels)


def test_loss_by_hand():
    # Two experts with the scores 1 and -1; expert 0 chosen, right in sample 0 and wrong in sample 1.
    scores = torch.tensor([1.0, -1.0]).reshape(1, 2, 1)
    is_correct = torch.tensor([True, False]).reshape(2, 1, 1)
    loss = routing_classification_loss(scores, torch.zeros(1, 1, 1, dtype=torch.int64), is_correct)
    # Labels (1, 0) and (0, 1): softplus(-1) twice and softplus(1) twice, over four.
    softplus = [math.log1p(math.exp(value)) for value in (-1.0, 1.0)]
    assert float(loss) == pytest.approx(sum(softplus) / 2)
    per_sample = routing_classification_loss(
        scores.expand(2, 2, 1), torch.zeros(2, 1, 1, dtype=torch.int64), is_correct
    )
    assert float(per_sample) == pytest.approx(sum(softplus) / 2)


def test_all_experts_selected():
    with pytest.raises(ValueError, match="all 2 experts are selected"):
        routing_labels(torch.tensor([0, 1]).reshape(1, 2, 1), torch.ones(1, 2, 1, dtype=torch.bool), 2)
