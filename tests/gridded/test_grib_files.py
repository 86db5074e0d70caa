from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ens10_files import GRID, STARTS, member_fields, write_grib
from smoe.errors import DataError
from smoe.gridded._open import open_fields

pytest.importorskip("eccodes")


def test_grib_files_are_opened_without_the_index_beside_them(tmp_path: Path) -> None:
    path = write_grib(tmp_path / "members.grib", "pl", STARTS[:1], numbers=(1, 2))
    fields = open_fields(path)
    assert fields["t"].shape == (2, *GRID.shape)
    expected = member_fields("T", 500, STARTS[0])[1]
    np.testing.assert_allclose(fields["t"].isel(number=1, latitude=slice(2, 5)).values, expected[2:5], rtol=1e-5)
    np.testing.assert_allclose(fields["t"].isel(number=[1, 0], longitude=3).values[0], expected[:, 3], rtol=1e-5)
    # cfgrib would write an index, and read one, which is a pickle.
    assert [each.name for each in tmp_path.iterdir()] == ["members.grib"]


def test_files_that_are_cut_off_are_refused(tmp_path: Path) -> None:
    path = write_grib(tmp_path / "members.grib", "pl", STARTS[:1], numbers=(1, 2))
    whole = path.read_bytes()
    # Inside the last message, behind it, and in its header.
    for damaged in (whole[:-100], whole + b"GR", whole[:-1] + b"8", whole[: len(whole) // 14 + 9]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"is damaged or incomplete: the message at byte \d+ does not end"):
            open_fields(path)
    path.write_bytes(whole + bytes(8))
    assert "t" in open_fields(path)
