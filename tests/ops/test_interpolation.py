from __future__ import annotations

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
@pytest.mark.parametrize(("old", "new"), [(44, 56), (7, 6), (5, 1), (1, 4), (3, 9), (4, 4)])
def test_axis_is_the_definition(old: int, new: int, mode: Any, wraps: bool) -> None:
    values = torch.randn(old, dtype=torch.float64)
    expected = torch.tensor(axis_by_definition(values.tolist(), new, mode, wraps), dtype=torch.float64)
    torch.testing.assert_close(interpolate_axis(values, new, mode=mode, wraps=wraps), expected)


@pytest.mark.parametrize("grid", [(7, 9), (3, 12), (5, 6)])
def test_grid_is_torchs(grid: tuple[int, int]) -> None:
    field = torch.randn(2, 3, 5, 6, dtype=torch.float64)
    expected = F.interpolate(field, grid, mode="bilinear", align_corners=False)
    torch.testing.assert_close(interpolate_grid(field, grid), expected)


def test_refusals() -> None:
    with pytest.raises(ValueError, match="mode must be one of linear, nearest, got 'cubic'"):
        interpolate_axis(torch.zeros(3), 4, mode="cubic")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        interpolate_axis(torch.zeros(3), 0)
