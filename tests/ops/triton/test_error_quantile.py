from __future__ import annotations

import pytest
import torch


def definition(values: torch.Tensor, quantile: float) -> torch.Tensor:
    """Sorts, and interpolates in float32 operations, each rounded."""
    ranked = values.float().flatten(1).sort(dim=1).values
    position = quantile * (ranked.shape[1] - 1)
    rank = int(position)
    low, high = ranked[:, rank], ranked[:, min(rank + 1, ranked.shape[1] - 1)]
    result = torch.where(low == high, low, low + (position - rank) * (high - low)) if position > rank else low
    return result.masked_fill(values.isnan().flatten(1).any(dim=1), torch.nan)


def assert_bits_equal(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.dtype == torch.float32
    assert torch.equal(actual.cpu().view(torch.int32), expected.cpu().view(torch.int32))


@pytest.mark.parametrize("quantile", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_equals_the_definition_to_the_last_bit(dtype, quantile, device):
    from smoe.ops.triton.error_quantile import triton_error_quantile

    values = torch.randn(3, 5, 71, device=device).to(dtype)
    assert_bits_equal(triton_error_quantile(values, quantile), definition(values, quantile))


@pytest.mark.parametrize("num_values", [1, 2, 3, 1025])
def test_any_number_of_values(num_values, device):
    from smoe.ops.triton.error_quantile import triton_error_quantile

    values = torch.rand(2, num_values, device=device) ** 8
    assert_bits_equal(triton_error_quantile(values, 0.41), definition(values, 0.41))


@pytest.mark.slow
def test_more_values_than_one_program_counts(device):
    from smoe.ops.triton.error_quantile import triton_error_quantile

    values = torch.randn(2, 40_001, device=device)
    assert_bits_equal(triton_error_quantile(values, 0.77), definition(values, 0.77))


# The interpreter computes with NumPy, which warns about inf - inf and 0 * inf.
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_equal_and_special_values(device):
    from smoe.ops.triton.error_quantile import triton_error_quantile

    infinity = torch.inf
    rows = [
        [0.0, 0.0, 0.0, 0.0, 5.0],
        [-0.0, 0.0, -1.0, 1.0, -0.0],
        [infinity, -infinity, 1.0, 2.0, infinity],
        [infinity, infinity, infinity, infinity, 0.0],
        [1.0, torch.nan, 2.0, 3.0, 4.0],
        [1e-45, -1e-45, 1e-40, -1e-40, 3e38],
    ]
    values = torch.tensor(rows, device=device)
    for quantile in (0.0, 0.1, 0.5, 0.6, 1.0):
        actual, expected = triton_error_quantile(values, quantile).cpu(), definition(values, quantile).cpu()
        # -0 and 0 are equal; NaN is where NaN is.
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


def test_no_rows(device):
    from smoe.ops.triton.error_quantile import triton_error_quantile

    assert triton_error_quantile(torch.zeros(0, 3, device=device), 0.5).shape == (0,)
