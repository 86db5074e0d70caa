from __future__ import annotations

import pytest
import torch


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
@pytest.mark.parametrize(("shape", "num_selected"), [((1, 5, 7), 3), ((2, 37, 35), 5), ((1, 4, 3), 4), ((2, 3, 4), 1)])
def test_highest_scores_in_order(shape, num_selected, dtype, device):
    from smoe.ops.triton.top_experts import triton_top_experts

    # Few different values: ties go to the lower number, as a stable sort has it.
    scores = torch.randint(-2, 3, shape, device=device).to(dtype)
    expected = scores.sort(dim=1, descending=True, stable=True).indices[:, :num_selected]
    actual = triton_top_experts(scores, num_selected)
    assert actual.dtype == torch.int32 and torch.equal(actual.long(), expected)


def test_nan_ranks_with_minus_infinity(device):
    from smoe.ops.triton.top_experts import triton_top_experts

    nan, infinity = torch.nan, torch.inf
    scores = torch.tensor([[1.0, nan], [nan, -infinity], [-infinity, nan], [infinity, 0.0]], device=device)[None]
    assert triton_top_experts(scores, 4)[0].T.tolist() == [[3, 0, 1, 2], [3, 0, 1, 2]]
    assert triton_top_experts(torch.full((1, 3, 2), nan, device=device), 1).tolist() == [[[0, 0]]]


def test_no_pixels(device):
    from smoe.ops.triton.top_experts import triton_top_experts

    assert triton_top_experts(torch.zeros(1, 3, 0, device=device), 2).shape == (1, 2, 0)
