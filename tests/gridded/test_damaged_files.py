"""Damaged files are refused in one line; the length that a classic NetCDF file declares is its own."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest

import smoe
from gridded_files import regional
from smoe._integrity import check_netcdf_file
from smoe.errors import DataError
from smoe.gridded._open import open_fields
from smoe.gridded._source import load_arrays
from smoe.meshes._mesh_files import MESHIO_SUFFIXES


def write_mesh(path: Path) -> None:
    meshio = pytest.importorskip("meshio")
    mesh = meshio.Mesh(np.eye(4, 3), [("triangle", np.array([[0, 1, 2], [1, 2, 3]]))])
    mesh.write(path, "gmsh" if path.suffix == ".msh" else None)


def read_fields(path: Path) -> Any:
    return load_arrays({str(name): field for name, field in open_fields(path).items()}, "inputs")


FORMATS: dict[str, tuple[Callable[[Path], Any], Callable[[Path], Any]]] = {
    "classic.nc": (lambda path: regional(8).to_netcdf(path, format="NETCDF3_CLASSIC"), read_fields),
    "64bit.nc": (lambda path: regional(8).to_netcdf(path, format="NETCDF3_64BIT"), read_fields),
    "four.nc": (lambda path: regional(8).to_netcdf(path, encoding={"t2m": {"zlib": True}}), read_fields),
    "two.zarr": (lambda path: regional(8).to_zarr(path, zarr_format=2), read_fields),
    "three.zarr": (lambda path: regional(8).to_zarr(path, zarr_format=3, consolidated=False), read_fields),
    **{f"mesh{suffix}": (write_mesh, smoe.read_mesh) for suffix in MESHIO_SUFFIXES},
}


def spoil(file: Path, chance: random.Random) -> None:
    content = bytearray(file.read_bytes())
    if chance.random() < 0.3:
        del content[chance.randrange(len(content)) :]
    else:
        for _ in range(chance.choice((1, 1, 4, 20))):
            content[chance.randrange(len(content))] = chance.randrange(256)
    file.write_bytes(content)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FORMATS)
def test_random_damage(name: str, tmp_path: Path) -> None:
    write, read = FORMATS[name]
    whole, damaged = tmp_path / name, tmp_path / "damaged" / name
    write(whole)
    said = []
    for seed in range(40):
        shutil.rmtree(damaged.parent, ignore_errors=True)
        damaged.parent.mkdir()
        (shutil.copytree if whole.is_dir() else shutil.copy)(whole, damaged)
        chance = random.Random(seed)
        files = sorted(file for file in damaged.rglob("*") if file.is_file() and file.stat().st_size)
        spoil(chance.choice(files) if files else damaged, chance)
        try:
            read(damaged)
        except DataError as error:
            said.append(str(error))
    assert len(said) > 5 and not any("\n" in text for text in said), said


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
