"""Compares the units written in files with the expected units."""

from __future__ import annotations

import re

from smoe.errors import DataError
from smoe_paper.atmosphere.variables import Variable


def canonical_units(text: str) -> str:
    """Returns units in one spelling: `m**2 s**-2`, `m^2/s^2` and `m2 s-2` are equal.

    A quotient has one divisor or several factors below the line, as in `m2/s2`; brackets stay as they are.
    """
    text = " ".join(text.replace("**", "").replace("^", "").replace("·", " ").split())
    above, *below = text.split("/")
    if not above or not below:
        return text
    factors = []
    for factor in " ".join(below).split():
        match = re.fullmatch(r"([A-Za-z]+)([0-9]*)", factor)
        if match is None:
            return text
        factors.append(f"{match[1]}-{match[2] or 1}")
    return " ".join((above.strip(), *factors))


def check_units(variable: Variable, found: str | None, where: str) -> None:
    """Refuses units other than the variable's own; a file without units passes.

    The bounds in `Variable.plausible` then check the values of such a file.
    """
    if found is None or not found.strip():
        return
    accepted = {canonical_units(text) for text in (variable.units, *variable.unit_names)}
    if canonical_units(found) not in accepted:
        raise DataError(f"{where} is in {found!r}, expected {variable.units!r}; convert the file first")
