"""Ranges of years in recipes. Imports nothing."""

from __future__ import annotations

from typing import Any


def check_year_ranges(data: Any, names: tuple[str, ...] = ("train_years", "validation_years", "test_years")) -> None:
    """Refuses ranges whose first year is after their last.

    Args:
        data: that has them as attributes.
        names: of the attributes.
    """
    for name in names:
        first, last = getattr(data, name)
        if first > last:
            raise ValueError(f"{name} must be the first and the last year, got {first} and {last}")
