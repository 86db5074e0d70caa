from __future__ import annotations

import pytest
import torch

from definitions import define_routing
from smoe.ops._classification import (
    choice_errors,
    end_to_end_gradient,
    routing_gradient,
    wrong_choices,
)


def test_choice_errors_are_at_least_float32_and_leave_the_error_alone():
    error = torch.randn(2, 2, 9).half()
    before = error.clone()
    assert choice_errors(error, 1).dtype == torch.float32
    assert torch.equal(error, before)


def test_the_two_tolerances_are_two():
    errors = torch.tensor([0.0, 0.0, 0.0, 0.0, 2e-5, 2e-3]).reshape(1, 1, 6)
    # The threshold is 0.
    is_wrong, is_damped = wrong_choices(errors, 0.3, (1e-5, 1e-3))
    assert is_wrong.flatten().tolist() == [False] * 4 + [True, True]
    assert is_damped.flatten().tolist() == [False] * 5 + [True]


def test_wrong_means_above_and_not_at_the_threshold():
    errors = torch.tensor([1.0, 1.0, 1.0]).reshape(1, 1, 3)
    (is_wrong,) = wrong_choices(errors, 0.3, (0.0,))
    assert not is_wrong.any()


@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("num_selected", [1, 2, 3])
def test_routing_gradient_is_that_of_the_labels(num_selected, per_sample):
    torch.manual_seed(num_selected)
    error = torch.randn(3, num_selected, 6, dtype=torch.float64)
    scores = torch.randn(3 if per_sample else 1, 4, 6, dtype=torch.float64)
    indices = scores.argsort(dim=1, descending=True)[:, :num_selected].int()
    definition = define_routing(error, indices.expand(3, -1, -1), 4)
    actual = routing_gradient(scores, indices, definition.is_wrong)
    expected = (scores.sigmoid() - definition.labels) / definition.labels.numel()
    torch.testing.assert_close(actual, expected if per_sample else expected.sum(dim=0, keepdim=True))


def test_labels_are_at_most_one():
    # Three of four experts wrong: the label of the only unselected one would be 3.
    scores, indices = torch.zeros(1, 4, 1), torch.tensor([0, 1, 2]).reshape(1, 3, 1)
    gradient = routing_gradient(scores, indices, torch.ones(1, 3, 1, dtype=torch.bool))
    # (sigmoid(0) - label) / 4
    assert gradient.flatten().tolist() == [0.125, 0.125, 0.125, -0.125]


def test_end_to_end_adds_the_errors_of_an_expert():
    scores, indices = torch.zeros(1, 3, 1), torch.tensor([2, 0], dtype=torch.int32).reshape(1, 2, 1)
    error = torch.tensor([[1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0, 40.0]]).reshape(2, 4, 1)
    # Outputs 0, 1 are expert 2's and outputs 2, 3 expert 0's, in both samples.
    assert end_to_end_gradient(scores, indices, error, 2).flatten().tolist() == [77.0, 0.0, 33.0]
    per_sample = end_to_end_gradient(scores.expand(2, 3, 1), indices.expand(2, 2, 1), error, 2)
    assert per_sample.flatten(1).tolist() == [[7.0, 0.0, 3.0], [70.0, 0.0, 30.0]]
