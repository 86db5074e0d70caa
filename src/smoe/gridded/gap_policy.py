"""What becomes of missing values: a steady mask is kept, other gaps are refused, left out or filled."""

from __future__ import annotations

import numpy as np

from smoe.errors import DataError
from smoe.gridded.field_source import FieldSource
from smoe.gridded.field_table import FieldTable, describe_position


def check_gaps(table: FieldTable, source: FieldSource, policy: str) -> None:
    """Refuses channels without any value, and gaps that change with time unless a policy is named.

    Args:
        table: Fields.
        source: Where they come from.
        policy: `refuse`; `drop` or `fill` allow gaps.

    Raises:
        DataError: With the variable, the first time and the number of values.
    """
    for number, channel in enumerate(table.channels):
        if table.always_missing[number].all():
            raise DataError(f"{channel.name} of {source.where} has no value at all: leave it out")
        if table.has_steady_gaps[number] or policy != "refuse":
            continue
        steady = int(table.always_missing[number].sum())
        rows = np.flatnonzero(table.num_missing[:, number] > steady)
        count = int(table.num_missing[rows[0], number]) - steady
        why = describe_invalid(source, channel.variable)
        raise DataError(
            f"{channel.name} of {source.where} has {count} missing values"
            f"{describe_position(source, int(table.positions[rows[0]]), channel)} that are there at other times, and "
            f"such gaps at {len(rows)} of {len(table)} times{f' ({why})' if why else ''}: set missing to 'drop' to "
            "leave these times out or to 'fill' to fill them"
        )


def describe_invalid(source: FieldSource, variable: str) -> str:
    """How many values of a variable are missing because they lie outside of its valid range; nothing if none are."""
    if variable not in source.num_invalid:
        return ""
    low, high = source.valid_ranges[variable]
    return f"{source.num_invalid[variable]} values lie outside of its valid range, {low:g} to {high:g}"


def has_gap(table: FieldTable) -> np.ndarray:
    """Whether a row has missing values beyond those that are missing at all rows, `(N,)`."""
    steady = table.always_missing.sum(axis=(1, 2))
    return (table.num_missing > steady).any(axis=1)
