"""Years as text."""

from __future__ import annotations


def describe_years(years: tuple[int, ...]) -> str:
    """Years as ranges: `1979-1981, 1983`."""
    parts: list[list[int]] = []
    for year in years:
        if parts and parts[-1][1] == year - 1:
            parts[-1][1] = year
        else:
            parts.append([year, year])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts) or "none"
