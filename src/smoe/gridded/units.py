"""Whether two texts mean the same units: `m s**-1`, `m/s` and `m s-1` do, `K` and `degC` do not."""

from __future__ import annotations

import re

# Spellings of one unit that files use; nothing is converted.
_SPELLINGS = {
    "K": ("kelvin", "kelvins", "degk", "degree_k", "degrees_k", "deg_k", "degree_kelvin", "degrees_kelvin"),
    "degC": ("celsius", "degreec", "degree_c", "degrees_c", "deg_c", "degree_celsius", "degrees_celsius", "degc", "°c"),
    "m": ("meter", "meters", "metre", "metres"),
    "s": ("sec", "second", "seconds"),
    "kg": ("kilogram", "kilograms"),
    "Pa": ("pascal", "pascals"),
    "hPa": ("mb", "mbar", "millibar", "millibars", "hectopascal", "hectopascals"),
    "%": ("percent",),
    "1": ("", "-", "dimensionless", "(0 - 1)", "fraction"),
}
_KNOWN = {spelling: unit for unit, spellings in _SPELLINGS.items() for spelling in spellings}
_FACTOR = re.compile(r"^(?P<name>[^\d^*+-]+)(?:\^|\*\*)?(?P<power>[+-]?\d+)?$")


def are_same_units(first: str, second: str) -> bool:
    """Whether two texts name the same units. A text that is not understood equals itself only.

    Args:
        first: Units as a file gives them.
        second: Units of the other one.
    """
    return first == second or _factors(first) == _factors(second)


def _factors(text: str) -> dict[str, int] | str:
    """Powers of the units in a product, or the text itself."""
    text = text.strip()
    if text.lower() in _KNOWN:
        return {_KNOWN[text.lower()]: 1}
    powers: dict[str, int] = {}
    sign = 1
    for part in re.findall(r"/|[^\s/.]+", text.replace("**", "^")):
        if part == "/":
            sign = -1
            continue
        found = _FACTOR.match(part)
        if found is None and part != "1":
            return text
        if found is not None:
            name = _KNOWN.get(found["name"].lower(), found["name"])
            powers[name] = powers.get(name, 0) + sign * int(found["power"] or 1)
        sign = 1
    return {name: power for name, power in powers.items() if power} or {"1": 1}
