"""Families of experts against definitions written as loops."""

from __future__ import annotations

import math

import pytest
import torch

from smoe.ops._families import (
    _dense_gradient,
    family_gradient,
    family_sizes,
    relative_family_gradient,
    sample_factorised,
    sample_families,
    slot_products,
)

SIZES = [(7, 3), (5, 1), (4, 4), (11, 4)]


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
@pytest.mark.parametrize(("num_pixels", "dtype"), [(1, torch.float32), (33, torch.float32), (19, torch.float64)])
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
    with pytest.raises(ValueError, match="pixel 3"):
        sample_factorised(torch.ones(4, 4), scores[0], 2, torch.tensor(0), 1.0)


@pytest.mark.parametrize(("num_experts", "num_families"), SIZES)
@pytest.mark.parametrize(("rank", "dtype"), [(1, torch.float32), (70, torch.float32), (13, torch.float64)])
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


@pytest.mark.parametrize(("num_experts", "num_families"), [*SIZES, (256, 128)])
@pytest.mark.parametrize("temperature", [1.0, 0.2])
def test_the_gradient_is_that_of_a_softmax_that_mixes_the_outputs(
    num_experts: int, num_families: int, temperature: float
) -> None:
    torch.manual_seed(1)
    scores = (4.0 * torch.randn(1, num_experts, 5, dtype=torch.float64)).requires_grad_()
    products = torch.randn(1, num_experts, 5, dtype=torch.float64)
    value = torch.zeros((), dtype=torch.float64)
    for family in members(num_experts, num_families):
        own = slice(family.start, family.stop)
        value = value + ((scores[0, own] / temperature).softmax(dim=0) * products[0, own]).sum()
    (expected,) = torch.autograd.grad(value, scores)
    torch.testing.assert_close(family_gradient(scores.detach(), products, num_families, temperature), expected)
    # A number for each family and pixel has no effect.
    shift = torch.cat([torch.randn(1, 5).expand(len(family), 5) for family in members(num_experts, num_families)])
    shifted = family_gradient(scores.detach(), products + shift[None], num_families, temperature)
    torch.testing.assert_close(shifted, expected)


@pytest.mark.parametrize("scale", [1e-25, 1.0, 1e12])
@pytest.mark.parametrize(("num_experts", "num_families"), [(6, 3), (7, 3)])
def test_a_relative_gradient_has_no_scale(num_experts: int, num_families: int, scale: float) -> None:
    torch.manual_seed(2)
    scores, products = torch.randn(1, num_experts, 40), torch.randn(1, num_experts, 40)
    deviation = torch.cat(
        [part - part.mean(dim=0) for part in products[0].split(family_sizes(num_experts, num_families))]
    )
    spread = deviation.square().mean().sqrt()
    expected = family_gradient(scores, products, num_families) / spread
    found, found_spread = relative_family_gradient(scores, products * scale, num_families)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found_spread, scale * spread)


def test_equal_candidates_receive_nothing() -> None:
    scores = torch.randn(1, 6, 4)
    gradient, spread = relative_family_gradient(scores, torch.zeros(1, 6, 4), 3)
    assert (gradient == 0.0).all()
    assert spread == 0.0


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_products_that_are_not_finite_give_no_gradient(value: float) -> None:
    scores, products = torch.randn(1, 6, 33), torch.randn(1, 6, 33)
    products[0, 4, 32] = value
    gradient, spread = relative_family_gradient(scores, products, 3)
    assert (gradient == 0.0).all()
    assert not spread.isfinite()


@pytest.mark.parametrize(("num_experts", "num_families"), [*SIZES, (256, 128)])
@pytest.mark.parametrize(("num_pixels", "temperature"), [(1, 1.0), (64, 0.05), (1003, 0.05)])
def test_the_kernel_computes_its_definition(
    num_experts: int, num_families: int, num_pixels: int, temperature: float
) -> None:
    torch.manual_seed(5)
    # Differences of scores up to some hundreds, where all but one probability vanish.
    scores = torch.randn(1, num_experts, num_pixels) * torch.logspace(-2, 2, num_pixels)
    products, factor = torch.randn(1, num_experts, num_pixels), torch.tensor(0.5)
    expected, spread = _dense_gradient(scores.double(), products.double(), num_families, temperature, factor.double())
    found, found_spread = relative_family_gradient(scores, products, num_families, temperature, factor)
    # Probabilities have the error of scores in float32 over the temperature.
    torch.testing.assert_close(found.double(), expected, rtol=2e-3, atol=1e-5 / temperature)
    torch.testing.assert_close(found_spread.double(), spread, rtol=1e-6, atol=1e-7)


def test_operators_are_well_defined_for_compilers() -> None:
    scores, seed = torch.randn(1, 7, 9), torch.tensor(5)
    torch.library.opcheck(torch.ops.smoe.sample_factorised.default, (scores[0, :, :3], scores[0, :3], 3, seed, 0.01))
    torch.library.opcheck(torch.ops.smoe.family_gradient.default, (scores, scores + 1.0, 3, 1.0, torch.ones(())))


@pytest.mark.parametrize("expert_channels", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_are_sums_over_samples_and_outputs(expert_channels: int, dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    error, outputs = (torch.randn(3, 2 * expert_channels, 5).to(dtype) for _ in range(2))
    expected = torch.zeros(2, 5)
    for sample in range(3):
        for channel in range(2 * expert_channels):
            expected[channel // expert_channels] += error[sample, channel].float() * outputs[sample, channel].float()
    torch.testing.assert_close(slot_products(error, outputs, expert_channels), expected)
