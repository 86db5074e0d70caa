"""The length that the header of a classic NetCDF file declares is the file's own."""

from __future__ import annotations

from pathlib import Path

import netCDF4
import numpy as np
import pytest

from smoe._integrity import check_netcdf_file
from smoe.errors import DataError

CLASSIC = ("NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF3_64BIT_DATA")


def cut(path: Path, length: int) -> None:
    with path.open("r+b") as file:
        file.truncate(length)


@pytest.mark.parametrize("format", CLASSIC)
@pytest.mark.parametrize("unlimited", [False, True])
def test_declared_length_is_exact(tmp_path, format, unlimited):
    # Odd sizes and small types, so that padding counts: records of (3,) int16 and (5,) int8, and a scalar.
    path = tmp_path / "file.nc"
    with netCDF4.Dataset(path, "w", format=format) as file:
        file.title = "odd"
        file.createDimension("time", None if unlimited else 7)
        for name, length in (("three", 3), ("five", 5)):
            file.createDimension(name, length)
        file.createVariable("scalar", "f8", ())[:] = 1.0
        file.createVariable("a", "i2", ("time", "three"))[:] = np.arange(21).reshape(7, 3)
        file.createVariable("b", "i1", ("time", "five"))[:] = np.arange(35).reshape(7, 5)
        file["a"].note = np.array([1, 2, 3], "i2")
    check_netcdf_file(path)
    # What is behind the last value is padding to a multiple of four bytes at most.
    length = path.stat().st_size
    for missing in range(4, 40):
        cut(path, length - missing)
        with pytest.raises(DataError, match="truncated"):
            check_netcdf_file(path)
