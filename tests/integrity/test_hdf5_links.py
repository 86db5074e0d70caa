"""NetCDF-4 files that lead to other files, hold themselves, or claim huge chunks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("netCDF4")
pytest.importorskip("xarray")

import hdf5_files
from gridded_files import regional
from smoe.errors import DataError
from smoe.gridded.field_source import FieldSource
from smoe.gridded.open_fields import open_fields
from smoe.integrity.hdf5_links import check_hdf5_links
from smoe.meshes import read_mesh


@pytest.fixture
def file(tmp_path: Path) -> Path:
    regional(8).to_netcdf(tmp_path / "own.nc", format="NETCDF4")
    return tmp_path / "own.nc"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file of somebody else."""
    regional(8).rename(t2m="theirs").to_netcdf(tmp_path / "secret.nc", format="NETCDF4")
    return tmp_path / "secret.nc"


HOSTILE: dict[str, tuple[Callable[[Path, Path], None], str]] = {
    "external link": (
        lambda file, secret: hdf5_files.add_external_link(file, "theirs", secret, "/theirs"),
        "own.nc: /theirs is a link to another file, which is not followed",
    ),
    "external link to a group": (
        lambda file, secret: hdf5_files.add_external_link(file, "all\x1b[2J", secret),
        r"own.nc: /all\\x1b\[2J is a link to another file",
    ),
    "external values": (
        lambda file, secret: hdf5_files.add_external_values(file, "theirs", secret),
        "own.nc: the values of /theirs are in another file, which is not opened",
    ),
    "virtual values": (
        lambda file, secret: hdf5_files.add_virtual_values(file, "theirs", secret),
        "own.nc: the values of /theirs are in another file, which is not opened",
    ),
    "ring": (lambda file, _: hdf5_files.add_ring(file), "own.nc: its groups nest more than 32 levels deep"),
    "soft link to a group": (
        lambda file, _: hdf5_files.add_soft_link(file, "again", "/"),
        "own.nc: /again is a link to a group, which may hold it",
    ),
    "huge chunks": (
        lambda file, _: hdf5_files.add_chunked(file, "huge", (1000, 1000, 1000)),
        "own.nc: /huge has chunks of 1000x1000x1000: it claims 4.0 GB of memory",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_it_is_refused_with_the_name(file: Path, secret: Path, name: str) -> None:
    spoil, message = HOSTILE[name]
    spoil(file, secret)
    for read in (open_fields, read_mesh):
        with pytest.raises(DataError, match=message):
            read(file)


def test_links_within_the_file_are_no_harm(file: Path) -> None:
    hdf5_files.add_soft_link(file, "alias", "/t2m")
    check_hdf5_links(file)
    with open_fields(file) as data:
        assert np.isfinite(FieldSource(data).read(np.arange(8))).any()
    hdf5_files.add_chunked(file, "small", (2, 3, 5))
    check_hdf5_links(file)


def test_no_hdf5_file(tmp_path: Path) -> None:
    (tmp_path / "cut.nc").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    with pytest.raises(DataError, match=r"cut\.nc is no whole HDF5 file"):
        check_hdf5_links(tmp_path / "cut.nc")
