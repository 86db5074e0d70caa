from __future__ import annotations

import pytest
import torch

import smoe
from definitions import gate_scores
from smoe.nn._gate import normalize_scores
from smoe.options import NORMALIZATIONS
from smoe.rules import RoutingClassification

RC = RoutingClassification.released()

SCORES = torch.tensor([-2.0, 1.0, 0.0]).reshape(3, 1, 1)


@pytest.mark.parametrize(
    ("normalization", "expected"),
    [
        ("none", [-2.0, 1.0, 0.0]),
        ("abs", [2.0, 1.0, 0.0]),
        # exp(-2), e and 1 over their sum 3.8536
        ("softmax", [0.0351, 0.7054, 0.2595]),
        # exp(2), e and 1 over their sum 11.1073
        ("abs_softmax", [0.6652, 0.2447, 0.0900]),
    ],
)
def test_over_the_experts(normalization, expected):
    for num_samples, num_pixels in ((1, 1), (2, 5)):
        actual = normalize_scores(SCORES.reshape(1, 3, 1).expand(num_samples, 3, num_pixels), normalization)
        torch.testing.assert_close(
            actual, torch.tensor(expected).reshape(1, 3, 1).expand_as(actual), atol=1e-4, rtol=0.0
        )


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_routing_and_weights_use_the_normalised_scores(normalization):
    layer = smoe.SpatialMoE2d.from_experts(
        1, 3, 1, 1, gate=smoe.TensorGate(3, 1, (1, 1), normalization=normalization), weighted=True, rule=RC
    )
    with torch.no_grad():
        gate_scores(layer).copy_(SCORES)
        layer.weight.fill_(1.0)
    # An absolute value lets the strongly negative expert 0 win.
    favourite = 0 if "abs" in normalization else 1
    assert layer.routing().indices.item() == favourite
    expected = normalize_scores(SCORES.reshape(1, 3, 1), normalization)[0, favourite].item()
    assert layer(torch.ones(1, 1, 1, 1)).item() == pytest.approx(expected)
