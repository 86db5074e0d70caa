from __future__ import annotations

import pytest

from smoe.gridded._axes import are_same_units


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("m s**-1", "m s-1"),
        ("m/s", "m s^-1"),
        ("m**2 s**-2", "m2 s-2"),
        ("K", "kelvin"),
        ("degC", "degrees_Celsius"),
        ("hPa", "millibars"),
        ("kg/kg", "1"),
        ("kg m**-2 s**-1", "kg m-2 s-1"),
        ("(0 - 1)", "1"),
        ("", "1"),
        ("beaufort (1805)", "beaufort (1805)"),
    ],
)
def test_spellings_of_the_same_units(first: str, second: str) -> None:
    assert are_same_units(first, second) and are_same_units(second, first)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("K", "degC"),
        ("m s-1", "m s-2"),
        ("m s-1", "km h-1"),
        ("Pa", "hPa"),
        ("m", "M"),
        ("s/m", "m/s"),
        ("%", "1"),
        ("K", ""),
        ("days since 2000-01-01", "days since 2001-01-01"),
    ],
)
def test_other_units(first: str, second: str) -> None:
    assert not are_same_units(first, second) and not are_same_units(second, first)
