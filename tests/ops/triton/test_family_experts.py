from __future__ import annotations

import pytest
import torch

from smoe.ops._families import _dense_sample, family_sizes


@pytest.mark.parametrize(("num_experts", "num_families"), [(7, 3), (6, 2), (4, 4), (5, 1)])
def test_best_of_each_family(num_experts, num_families, device):
    from smoe.ops.triton.family_experts import triton_family_experts

    scores = torch.randint(-2, 3, (2, num_experts, 5), device=device).float()
    expected, first = [], 0
    for size in family_sizes(num_experts, num_families):
        expected.append(first + scores[:, first : first + size].max(dim=1).indices)
        first += size
    assert torch.equal(triton_family_experts(scores, num_families).long(), torch.stack(expected, dim=1))


def noise_of(seed: int, place: int) -> int:
    """The noise at one place, in Python's integers."""

    def scramble(bits: int) -> int:
        bits ^= bits >> 16
        bits = bits * 0x7FEB352D % 2**32
        bits ^= bits >> 15
        bits = bits * 0x846CA68B % 2**32
        return bits ^ bits >> 16

    bits = scramble((place * 0x9E3779B9 + scramble(seed % 2**32)) % 2**32)
    return sum(bits.to_bytes(4, "little")) - 510


@pytest.mark.parametrize("seed", [0, 1, 12345678901234567, -3])
def test_noise_equals_its_definition(seed, device):
    from smoe.ops.triton.family_experts import triton_sample_families

    num_experts, num_pixels = 5, 131
    scores = torch.zeros(1, num_experts, num_pixels, device=device)
    expected = [
        max(range(num_experts), key=lambda expert: noise_of(seed, expert * num_pixels + pixel))
        for pixel in range(num_pixels)
    ]
    actual = triton_sample_families(scores, 1, torch.tensor(seed, device=device), 1.0)
    assert actual.dtype == torch.int32 and actual[0, 0].tolist() == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("num_experts", "num_families", "num_pixels"), [(7, 3, 140), (12, 4, 129), (9, 1, 3)])
def test_sample_equals_the_dense_one_at_every_pixel(num_experts, num_families, num_pixels, dtype, device):
    from smoe.ops.triton.family_experts import triton_sample_families

    # Scores in steps of the noise, and noise of about the same size: near-ties are common.
    factor = 1 / 128
    scores = (torch.randint(-200, 200, (1, num_experts, num_pixels), device=device) * factor).to(dtype)
    for number in range(2):
        seed = torch.tensor(977 * number, device=device)
        expected = _dense_sample(scores, num_families, seed, factor)
        assert torch.equal(triton_sample_families(scores, num_families, seed, factor), expected)
        inexact = _dense_sample(scores / 3, num_families, seed, 0.0123)
        assert torch.equal(triton_sample_families(scores / 3, num_families, seed, 0.0123), inexact)


def test_scores_that_are_not_finite(device):
    from smoe.ops.triton.family_experts import triton_sample_families

    nan, infinity = torch.nan, torch.inf
    scores = torch.tensor([[nan, nan], [0.0, nan], [infinity, -infinity], [0.0, nan]], device=device)[None]
    selected = triton_sample_families(scores, 2, torch.tensor(5, device=device), 1.0)
    assert selected[0].T.tolist() == [[1, 2], [0, 2]]


def test_no_pixels(device):
    from smoe.ops.triton.family_experts import triton_family_experts, triton_sample_families

    scores = torch.zeros(1, 3, 0, device=device)
    assert triton_family_experts(scores, 2).shape == (1, 2, 0)
    assert triton_sample_families(scores, 2, torch.tensor(1, device=device), 1.0).shape == (1, 2, 0)
