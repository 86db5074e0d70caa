from __future__ import annotations

import math

import pytest
import torch

from smoe.nn._gate import smooth_fields


def correlation(fields: torch.Tensor, distance: int, dim: int) -> float:
    size = fields.shape[dim] - distance
    return float((fields.narrow(dim, 0, size) * fields.narrow(dim, distance, size)).mean() / fields.var(correction=0))


@pytest.mark.parametrize(("dim", "length"), [(1, 6.0), (2, 2.0)])
def test_correlation_falls_as_a_gaussian_of_the_length(dim, length):
    torch.manual_seed(0)
    fields = smooth_fields((64, 96, 96), length)
    assert float(fields.std(correction=0)) == pytest.approx(1.0, rel=1e-5)
    for distance in (int(length / 2), int(length), int(2 * length)):
        expected = math.exp(-((distance / length) ** 2) / 2)
        assert correlation(fields, distance, dim) == pytest.approx(expected, abs=0.05)


def test_width_is_periodic_and_height_is_not():
    torch.manual_seed(0)
    fields = smooth_fields((256, 48, 48), 4.0)
    assert float((fields[:, :, 0] * fields[:, :, -1]).mean()) == pytest.approx(math.exp(-1 / 32), abs=0.1)
    assert float((fields[:, 0] * fields[:, -1]).mean()) == pytest.approx(0.0, abs=0.1)
