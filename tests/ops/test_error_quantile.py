from __future__ import annotations

import pytest
import torch

from smoe.ops import error_quantile


@pytest.mark.parametrize("quantile", [0.0, 0.3, 0.999, 1.0])
@pytest.mark.parametrize("size", [1, 2, 11, 4096])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_torch_quantile(dtype, size, quantile):
    torch.manual_seed(size)
    errors = torch.randn(3, size, dtype=dtype)
    expected = errors.quantile(quantile, dim=1)
    # torch.quantile ranks in the dtype of the errors: with 4096 float32 errors it is a little off.
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(error_quantile(errors, quantile), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_counts_in_float32(dtype):
    errors = torch.rand(2, 3, 5, 7).to(dtype)
    actual = error_quantile(errors, 0.3)
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, errors.float().flatten(1).quantile(0.3, dim=1))


@pytest.mark.parametrize("quantile", [0.0, 0.25, 0.9])
@pytest.mark.parametrize("position", [0, 4])
def test_a_nan_is_never_silent(position, quantile):
    # With five errors, 0, 0.25 and 1 fall on a rank and need no interpolation.
    errors = torch.arange(10.0).reshape(2, 5)
    errors[0, position] = torch.nan
    actual = error_quantile(errors, quantile)
    assert actual[0].isnan()
    assert actual[1] == pytest.approx(5.0 + 4.0 * quantile)


def test_infinite_errors_have_their_rank():
    errors = torch.tensor([[1.0, torch.inf, 3.0, 2.0, torch.inf]])
    assert error_quantile(errors, 0.5).tolist() == [3.0]
    assert error_quantile(errors, 0.6).tolist() == [torch.inf]
    assert error_quantile(errors, 0.9).tolist() == [torch.inf]


def test_over_2_to_the_24_elements():
    # 7919 is prime and does not divide the size, so its multiples visit every value once.
    size = 2**24 + 2**20
    permutation = (torch.arange(size, dtype=torch.int64) * 7919) % size
    assert size % 7919 != 0
    actual = error_quantile(permutation.double().unsqueeze(0), 0.3)
    assert float(actual) == pytest.approx(0.3 * (size - 1), rel=1e-15)


def test_operator_is_well_defined_for_compilers():
    for errors in (torch.rand(3, 2, 5), torch.rand(3, 7).half(), torch.rand(5, 2, dtype=torch.float64).t()):
        torch.library.opcheck(torch.ops.smoe.error_quantile.default, (errors, 0.3))


def test_wrong_arguments():
    with pytest.raises(ValueError, match=r"quantile must be in \[0, 1\], got 1.5"):
        error_quantile(torch.rand(2, 3), 1.5)
    with pytest.raises(ValueError, match=r"at least one element per sample, got \(2, 0\)"):
        error_quantile(torch.rand(2, 0), 0.3)
    with pytest.raises(ValueError, match=r"got \(3,\)"):
        error_quantile(torch.rand(3), 0.3)


@pytest.mark.parametrize("share_of_zeros", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("quantile", [0.0, 0.3, 0.7, 1.0])
def test_many_equal_values(share_of_zeros: float, quantile: float) -> None:
    # Each row has another number of zeros around the share, so that ranks fall before, on and behind the last zero.
    errors = torch.rand(21, 200, dtype=torch.float64)
    for row in range(21):
        num_zeros = min(max(round(200 * share_of_zeros) + row - 10, 0), 200)
        errors[row, torch.randperm(200)[:num_zeros]] = 0.0
    errors[3, 5] = torch.nan
    torch.testing.assert_close(
        error_quantile(errors, quantile), torch.quantile(errors, quantile, dim=1), rtol=1e-12, atol=0, equal_nan=True
    )
