from __future__ import annotations

import pytest
import torch

from smoe.ops import gather_experts


@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("expert_channels", [1, 2])
def test_equals_loops(expert_channels, per_sample):
    torch.manual_seed(0)
    outputs = torch.randn(2, 3 * expert_channels, 2, 4)
    indices = torch.rand(2, 3, 2, 4).argsort(dim=1)[:, :2]
    if not per_sample:
        indices = indices[0]
    actual = gather_experts(outputs, indices, expert_channels)
    for b in range(2):
        own = indices[b] if per_sample else indices
        for s in range(2):
            for f in range(expert_channels):
                for h in range(2):
                    for w in range(4):
                        expert = int(own[s, h, w])
                        expected = outputs[b, expert * expert_channels + f, h, w]
                        assert actual[b, s * expert_channels + f, h, w] == expected


def test_wrong_grid_is_refused():
    with pytest.raises(ValueError, match=r"grid of \(4, 4\) but the experts' output has \(2, 4\)"):
        gather_experts(torch.zeros(1, 3, 2, 4), torch.zeros(1, 4, 4, dtype=torch.int64))
