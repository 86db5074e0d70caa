from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from smoe.ops._interpolation import interpolate_axis, interpolate_grid


def axis_by_definition(values: list[float], size: int, mode: str, wraps: bool) -> list[float]:
    """Value at the centre of each new pixel, (i + 1/2) / size of the length, between the centres of the old ones."""
    old = len(values)

    def at(index: int) -> float:
        return values[index % old] if wraps else values[min(max(index, 0), old - 1)]

    result = []
    for i in range(size):
        place = (2 * i + 1) * old  # in units of half an old pixel, times size
        doubled = place - size  # twice the coordinate among old centres, times size
        below = doubled // (2 * size)
        share = (doubled - below * 2 * size) / (2 * size)
        if mode == "nearest":
            share = 1.0 if share > 0.5 else 0.0
        result.append((1 - share) * at(below) + share * at(below + 1))
    return result


@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize("wraps", [False, True])
@pytest.mark.parametrize(("old", "new"), [(44, 56), (6, 7), (7, 6), (5, 1), (1, 4), (3, 9), (9, 3), (4, 4)])
def test_axis_is_the_definition(old: int, new: int, mode: Any, wraps: bool) -> None:
    values = torch.randn(old, dtype=torch.float64)
    expected = torch.tensor(axis_by_definition(values.tolist(), new, mode, wraps), dtype=torch.float64)
    torch.testing.assert_close(interpolate_axis(values, new, mode=mode, wraps=wraps), expected)


@pytest.mark.parametrize("grid", [(7, 9), (3, 12), (5, 6)])
def test_grid_is_torchs(grid: tuple[int, int]) -> None:
    field = torch.randn(2, 3, 5, 6, dtype=torch.float64)
    expected = F.interpolate(field, grid, mode="bilinear", align_corners=False)
    torch.testing.assert_close(interpolate_grid(field, grid), expected)


def test_the_same_grid_is_the_same_field() -> None:
    field = torch.randn(2, 5, 6)
    assert interpolate_grid(field, (5, 6)) is field


def test_a_circle_has_no_seam() -> None:
    def wave(size: int) -> torch.Tensor:
        return torch.cos(2 * math.pi * (torch.arange(size, dtype=torch.float64) + 0.5) / size)

    # A chord of a circle of 64 pixels is off by at most (2 pi / 64)^2 / 8.
    wrapped = interpolate_axis(wave(64), 128, wraps=True)
    assert (wrapped - wave(128)).abs().max() < (2 * math.pi / 64) ** 2 / 8
    expected = [0.75, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 2.25]
    # Between the last pixel, 3, and the first, 0, which follows it: a quarter of the way, 2.25, and back, 0.75.
    assert interpolate_axis(torch.arange(4.0), 8, wraps=True).tolist() == expected


def test_refusals() -> None:
    with pytest.raises(ValueError, match="mode must be one of linear, nearest, got 'cubic'"):
        interpolate_axis(torch.zeros(3), 4, mode="cubic")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        interpolate_axis(torch.zeros(3), 0)
