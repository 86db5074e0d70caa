from __future__ import annotations

import pytest
import torch


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("num_routings", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_gather_and_its_transpose(dtype, num_routings, channels_last, device):
    from smoe.ops.triton.gather_experts import triton_gather_channels, triton_scatter_channels

    num_channels, num_selected, num_pixels = 37, 33, 67
    values = torch.randn(2, num_channels, num_pixels, device=device, dtype=dtype)
    channels = torch.rand(num_routings, num_channels, num_pixels, device=device).argsort(dim=1)[:, :num_selected]
    if channels_last:
        values = values.transpose(1, 2).contiguous().transpose(1, 2)
    everywhere = channels.expand(2, -1, -1)
    gathered = triton_gather_channels(values, channels)
    assert torch.equal(gathered, values.gather(1, everywhere))
    expected = torch.zeros_like(values).scatter(1, everywhere, gathered)
    scattered = triton_scatter_channels(gathered, channels, num_channels)
    assert torch.equal(scattered, expected)
    assert (gathered.stride(1) == scattered.stride(1) == 1) == channels_last


def test_nothing_to_gather(device):
    from smoe.ops.triton.gather_experts import triton_gather_channels

    channels = torch.zeros(1, 2, 3, dtype=torch.int64, device=device)
    assert triton_gather_channels(torch.zeros(0, 4, 3, device=device), channels).shape == (0, 2, 3)
