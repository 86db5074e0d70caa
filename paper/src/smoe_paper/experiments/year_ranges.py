"""Ranges of years in recipes. Imports nothing."""

from __future__ import annotations

from typing import Any


def check_year_ranges(data: Any, names: tuple[str, ...] = ("train_years", "validation_years", "test_years")) -> None:
    """Checks that the first year of each range is not after the last.

    Args:
        data: Object with the ranges as attributes.
        names: Names of the attributes.
    """
    for name in names:
        first, last = getattr(data, name)
        if first > last:
            raise ValueError(f"{name} must be the first and the last year, got {first} and {last}")
