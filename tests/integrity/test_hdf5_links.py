"""NetCDF-4 files that lead to other files, hold themselves, or claim huge chunks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("netCDF4")
pytest.importorskip("xarray")

import hdf5_files
from gridded_files import regional
from hostile_files import HDF5, write_hdf5
from smoe.errors import DataError
from smoe.gridded.field_source import FieldSource
from smoe.gridded.open_fields import open_fields
from smoe.integrity.hdf5_links import check_hdf5_links
from smoe.meshes import read_mesh


@pytest.mark.parametrize("name", HDF5)
def test_it_is_refused_with_the_name(tmp_path: Path, name: str) -> None:
    message = write_hdf5(tmp_path / "own.nc", name)
    for read in (open_fields, read_mesh):
        with pytest.raises(DataError, match=message):
            read(tmp_path / "own.nc")


def test_links_within_the_file_are_no_harm(tmp_path: Path) -> None:
    file = tmp_path / "own.nc"
    regional(8).to_netcdf(file, format="NETCDF4")
    hdf5_files.add_soft_link(file, "alias", "/t2m")
    check_hdf5_links(file)
    with open_fields(file) as data:
        assert np.isfinite(FieldSource(data).read(np.arange(8))).any()
    hdf5_files.add_chunked(file, "small", (2, 3, 5))
    check_hdf5_links(file)


def test_no_hdf5_file(tmp_path: Path) -> None:
    (tmp_path / "cut.nc").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    with pytest.raises(DataError, match=r"cut\.nc: it cannot be read, .* \(no whole HDF5 file\)"):
        check_hdf5_links(tmp_path / "cut.nc")
