"""Accuracies and errors of classifiers, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from smoe_paper.metrics import Accuracy, ClassErrors, MeanCrossEntropy, class_ranks

LOGITS = torch.tensor([[3.0, 2.0, 1.0], [0.0, 5.0, 4.0], [1.0, 2.0, 3.0], [9.0, 0.0, 1.0]])
CLASSES = torch.tensor([0, 2, 0, 0])


def test_top_accuracies_over_batches():
    metric = Accuracy((1, 2))
    totals = metric.totals(LOGITS[:3], CLASSES[:3]) + metric.totals(LOGITS[3:], CLASSES[3:])
    # first: samples 0 and 3; first two: also sample 1
    assert metric.values(totals) == {"accuracy": 50.0, "top2_accuracy": 75.0}


def test_a_constant_answer_is_not_right_everywhere():
    values = Accuracy().values(Accuracy().totals(torch.zeros(4, 4), torch.arange(4)))
    assert values["accuracy"] == 25.0


def test_not_a_number_is_wrong():
    logits = torch.tensor([[math.nan, 1.0], [2.0, math.nan], [1.0, 0.0]])
    assert class_ranks(logits, torch.tensor([1, 0, 0])).tolist() == [2, 2, 0]


def test_errors_of_classes():
    metric = ClassErrors(3)
    # class 0: one wrong of three; class 1 does not occur; class 2: one of one
    assert metric.values(metric.totals(LOGITS, CLASSES)) == {
        "error/class_0": pytest.approx(100 / 3),
        "error/class_2": 100.0,
    }


def test_mean_cross_entropy_counts_samples():
    metric = MeanCrossEntropy()
    # softmax of (0, log 3) is (1/4, 3/4)
    logits = torch.tensor([[0.0, math.log(3.0)]] * 3)
    totals = metric.totals(logits[:2], torch.tensor([1, 1])) + metric.totals(logits[2:], torch.tensor([0]))
    assert metric.values(totals)["cross_entropy"] == pytest.approx(-(2 * math.log(0.75) + math.log(0.25)) / 3)


def test_refuses():
    with pytest.raises(ValueError, match=r"classes must be in \[0, 2\], got 0 to 3"):
        Accuracy().totals(torch.zeros(2, 3), torch.tensor([0, 3]))
    with pytest.raises(ValueError, match=r"prediction must be \(B, 4\), got \(4, 3\)"):
        ClassErrors(4).totals(LOGITS, CLASSES)
    with pytest.raises(ValueError, match=r"top must be numbers from 1 on"):
        Accuracy((0,))
