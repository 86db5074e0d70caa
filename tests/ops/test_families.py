"""Families of experts against definitions written as loops."""

from __future__ import annotations

import math

import pytest
import torch

from smoe.ops._families import family_sizes, sample_factorised, sample_families

SIZES = [(6, 3), (7, 3), (5, 1), (4, 4), (11, 4)]


def members(num_experts: int, num_families: int) -> list[range]:
    """Experts of each family."""
    families, start = [], 0
    for size in family_sizes(num_experts, num_families):
        families.append(range(start, start + size))
        start += size
    return families


def byte_sum(seed: int, place: int) -> int:
    """The noise of one score, in units of bytes."""

    def scramble(bits: int) -> int:
        bits ^= bits >> 16
        bits = bits * 0x7FEB352D & 0xFFFFFFFF
        bits ^= bits >> 15
        bits = bits * 0x846CA68B & 0xFFFFFFFF
        return bits ^ (bits >> 16)

    bits = scramble((place * 0x9E3779B9 + scramble(seed & 0xFFFFFFFF)) & 0xFFFFFFFF)
    return sum(bits.to_bytes(4, "little")) - 510


@pytest.mark.parametrize(("num_experts", "num_families"), SIZES)
@pytest.mark.parametrize("num_pixels", [1, 19, 33])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_sample_is_the_best_of_each_family_after_noise(
    num_experts: int, num_families: int, num_pixels: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    scores = torch.randn(1, num_experts, num_pixels, dtype=dtype)
    seed, noise = torch.tensor(2**35 + 77), 1.3
    expected = torch.empty(1, num_families, num_pixels, dtype=torch.int32)
    factor = noise / math.sqrt(4 * (256**2 - 1) / 12)
    for pixel in range(num_pixels):
        for slot, family in enumerate(members(num_experts, num_families)):
            noisy = {
                expert: float(scores[0, expert, pixel]) + factor * byte_sum(int(seed), expert * num_pixels + pixel)
                for expert in family
            }
            expected[0, slot, pixel] = max(noisy, key=lambda expert: noisy[expert])
    assert torch.equal(sample_families(scores, num_families, seed, noise), expected)


def test_noise_has_its_standard_deviation_and_no_effect_where_a_lead_is_large() -> None:
    scores = torch.zeros(1, 2, 4000)
    scores[0, 1] = 1.0
    chosen = torch.stack([sample_families(scores, 1, torch.tensor(seed), 1.0) for seed in range(50)])
    # The difference of two scores has the standard deviation sqrt(2): Phi(1 / sqrt(2)) = 0.760.
    assert float(chosen.float().mean()) == pytest.approx(0.760, abs=0.01)
    # No pixel has a preference of its own, and no pass.
    assert float(chosen.float().mean(dim=0).std()) == pytest.approx(math.sqrt(0.76 * 0.24 / 50), rel=0.1)
    scores[0, 1] = 7.0
    assert (sample_families(scores, 1, torch.tensor(3), 1.0) == 1).all()
    scores[0, 1] = 1e-3
    assert (sample_families(scores, 1, torch.tensor(3), 0.0) == 1).all()


def test_a_score_that_is_not_finite_is_refused() -> None:
    scores = torch.zeros(1, 4, 5)
    scores[0, 2, 3] = torch.nan
    with pytest.raises(ValueError, match="expert 2 at pixel 3"):
        sample_families(scores, 2, torch.tensor(0), 1.0)


def test_the_operator_passes_the_checks_of_torch() -> None:
    torch.library.opcheck(torch.ops.smoe.sample_families.default, (torch.randn(1, 7, 9), 3, torch.tensor(5), 0.01))


@pytest.mark.parametrize(("num_experts", "num_families"), SIZES)
@pytest.mark.parametrize("rank", [1, 8, 13, 70])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_sample_from_keys_and_embeddings_is_that_of_their_products(
    num_experts: int, num_families: int, rank: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(4)
    # Small integers, whose products are exact in any order.
    keys = torch.randint(-3, 4, (num_experts, rank)).to(dtype)
    embedding = torch.randint(-3, 4, (rank, 37)).to(dtype)
    for seed, noise in ((torch.tensor(11), 2.0), (torch.tensor(2**33), 0.0)):
        expected = sample_families((keys @ embedding)[None], num_families, seed, noise)
        assert torch.equal(sample_factorised(keys, embedding, num_families, seed, noise), expected)


def test_an_embedding_that_is_not_finite_is_refused() -> None:
    keys, embedding = torch.ones(4, 2), torch.zeros(2, 19)
    embedding[1, 17] = torch.inf
    with pytest.raises(ValueError, match="pixel 17"):
        sample_factorised(keys, embedding, 2, torch.tensor(0), 1.0)


def test_the_operator_of_keys_and_embeddings_passes_the_checks_of_torch() -> None:
    arguments = (torch.randn(7, 3), torch.randn(3, 9), 3, torch.tensor(5), 0.01)
    torch.library.opcheck(torch.ops.smoe.sample_factorised.default, arguments)
