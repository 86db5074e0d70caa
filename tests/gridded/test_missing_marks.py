from __future__ import annotations

import numpy as np
import pytest

from gridded_files import regional
from smoe.errors import DataError
from smoe.gridded.field_source import FieldSource
from smoe.gridded.field_table import collect_fields, find_mark


@pytest.mark.parametrize("mark", [-9999.0, 1e20, -999.0, 9.969209968386869e36])
def test_a_mark_that_no_attribute_declares_is_refused(mark: float) -> None:
    dataset = regional(4)
    dataset["t2m"][2, 1, :2] = mark
    message = f"t2m of inputs has 2 values of {mark:g} at 2001-01-03, which look like a mark".replace("+", r"\+")
    with pytest.raises(DataError, match=message):
        collect_fields(FieldSource(dataset), np.arange(4))
    static = regional(4).assign(height=dataset["t2m"].isel(time=2, drop=True))
    with pytest.raises(DataError, match="height of inputs has 2 values of"):
        collect_fields(FieldSource(static), np.arange(4))


def test_values_that_happen_to_be_marks() -> None:
    fields = np.random.default_rng(0).normal(-800.0, 300.0, (3, 2, 4, 5)).astype(np.float32)
    fields[1, 1, 2, 2] = -9999.0 / 3.0
    fields[0, 0, 0, 0] = -999.0
    assert find_mark(fields) is None
    # A field that is a mark everywhere may be a constant; NaN beside it does not count.
    fields[:, 1] = -9999.0
    fields[0, 1, 0, 0] = np.nan
    assert find_mark(fields) is None
    fields[0, 1, 0, 1:3] = 3.0, 4.0
    assert find_mark(fields) == (1, -9999.0)
