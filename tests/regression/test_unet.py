from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from smoe.nn import GridConv2d
from smoe.regression._nets import UNet, UNetBlock


@pytest.mark.parametrize(("in_channels", "expected"), [(14, 633_698), (22, 636_002)])
def test_parameters(in_channels: int, expected: int) -> None:
    with torch.device("meta"):
        model = UNet(in_channels)
    assert sum(parameter.numel() for parameter in model.parameters()) == expected


def block_by_definition(x: torch.Tensor, block: torch.nn.Module) -> torch.Tensor:
    assert isinstance(block, UNetBlock)
    for conv, norm in ((block.first, block.first_norm), (block.second, block.second_norm)):
        x = F.conv2d(x, conv.weight, conv.bias, padding=1)
        x = F.relu(F.batch_norm(x, None, None, norm.weight, norm.bias, training=True))
    return x


def joined_by_definition(skipped: torch.Tensor, coarse: torch.Tensor) -> torch.Tensor:
    fine = F.interpolate(coarse, scale_factor=2, mode="bilinear")
    if fine.shape[2] + 1 == skipped.shape[2]:
        fine = torch.cat([fine[:, :, :1], fine], dim=2)
    return torch.cat([skipped, fine], dim=1)


# 361 rows of ENS-10 are odd at the first level only; 11 at the first two; 10 at the second.
@pytest.mark.parametrize("rows", [8, 9, 10, 11])
def test_the_net_is_what_it_says(rows: int) -> None:
    net = UNet(3, filters=4).double()
    for parameter in net.parameters():
        # Norms start at 0 and 1, where much could be wrong unseen.
        parameter.data += 0.1 * torch.randn_like(parameter)
    x = torch.randn(2, 3, rows, 8, dtype=torch.float64)
    fine = block_by_definition(x, net.encoder[0])
    middle = block_by_definition(F.max_pool2d(fine, 2), net.encoder[1])
    coarse = block_by_definition(F.max_pool2d(middle, 2), net.encoder[2])
    coarse = block_by_definition(coarse, net.decoder[0])
    middle = block_by_definition(joined_by_definition(middle, coarse), net.decoder[1])
    fine = block_by_definition(joined_by_definition(fine, middle), net.decoder[2])
    expected = F.conv2d(fine, net.head.weight, net.head.bias, padding=1)
    torch.testing.assert_close(net(x), expected)
    assert expected.shape == (2, 2, rows, 8)


def test_longitude_padding_leaves_no_seam() -> None:
    x = torch.randn(1, 3, 9, 16, dtype=torch.float64)
    # A shift by the size of a pixel of the lowest level.
    shifted = x.roll(4, dims=3)
    options: list[tuple[Any, bool]] = [("longitude", True), ("zeros", False)]
    for padding_mode, is_seamless in options:
        net = UNet(3, filters=4, padding_mode=padding_mode).double().eval()
        assert torch.allclose(net(shifted), net(x).roll(4, dims=3)) == is_seamless


def test_convolutions_start_as_torchs() -> None:
    net = UNet(14, filters=16)
    convs = [module for module in net.modules() if isinstance(module, GridConv2d)]
    assert len(convs) == 13
    for conv in convs:
        bound = 1 / math.sqrt(9 * conv.weight.shape[1])
        assert 0.95 * bound < conv.weight.abs().max() <= bound
        assert conv.bias is not None and 0.0 < conv.bias.abs().max() <= bound


def test_grids_that_do_not_fit() -> None:
    net = UNet(3, filters=4)
    with pytest.raises(ValueError, match="a multiple of 4 columns, got 8 x 10"):
        net(torch.zeros(1, 3, 8, 10))
    with pytest.raises(ValueError, match=r"input must be \(B, 3, H, W\)"):
        net(torch.zeros(1, 4, 8, 8))
    with pytest.raises(ValueError, match="as the poles do not meet"):
        UNet(3, padding_mode="circular")
