"""A NetCDF file whose coordinates claim more memory than its size allows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from smoe.errors import DataError
from smoe.gridded.open_fields import open_fields
from smoe.gridded.open_files import damage_as_data_error, open_netcdf

pytest.importorskip("netCDF4")


def write(path: Path, num_times: int, *, num_written: int) -> None:
    """Writes a file of some KB: values of a NetCDF-4 file that were never written take no room."""
    import netCDF4

    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("time", num_times)
        file.createDimension("latitude", 3)
        time = file.createVariable("time", "i4", ("time",), chunksizes=(min(num_times, 1000),))
        time.units = "hours since 2000-01-01"
        time[:num_written] = np.arange(num_written)
        file.createVariable("t2m", "f4", ("time", "latitude"), chunksizes=(min(num_times, 1000), 3))


def test_a_small_file_that_claims_many_times_is_refused_before_they_are_read(tmp_path: Path) -> None:
    write(tmp_path / "claims.nc", 100_000_000, num_written=5)
    assert (tmp_path / "claims.nc").stat().st_size < 100_000
    message = r"claims.nc: its dimension time has 100,000,000 values: it claims 4.0 GB of memory, but has"
    with pytest.raises(DataError, match=message):
        open_fields(tmp_path / "claims.nc")
    with pytest.raises(DataError, match=message), damage_as_data_error(tmp_path / "claims.nc"):
        open_netcdf(tmp_path / "claims.nc")


def test_a_file_within_bounds_is_opened(tmp_path: Path) -> None:
    write(tmp_path / "small.nc", 5, num_written=5)
    assert open_fields(tmp_path / "small.nc").sizes["time"] == 5
