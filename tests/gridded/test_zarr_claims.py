"""Zarr stores of a few KB whose metadata claim more memory than their size allows."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from gridded_files import regional
from smoe.errors import DataError
from smoe.gridded.open_fields import open_fields

zarr = pytest.importorskip("zarr")


def write(path: Path, name: str, **metadata: object) -> Path:
    """Writes a small store and changes the metadata of an array afterwards."""
    regional().to_zarr(path, zarr_format=3, consolidated=False)
    file = path / name / "zarr.json"
    content = json.loads(file.read_text()) | metadata
    file.write_text(json.dumps(content))
    return path


def grid(*chunks: int) -> dict[str, object]:
    return {"name": "regular", "configuration": {"chunk_shape": list(chunks)}}


@pytest.mark.parametrize(
    ("name", "shape", "chunks", "message"),
    [
        ("time", [10**9], [6], r"time has the shape \(1000000000,\) in chunks of \(6,\); the list of its chunks"),
        ("time", [10**8], [10**8], "time has 100,000,000 values: it claims 4.0 GB of memory"),
        ("t2m", [10**6, 3000, 5000], [1, 1, 1], "t2m has the shape .*; the list of its chunks: it claims"),
        ("t2m", [10**5, 10**5, 5], [10**5, 10**5, 5], "t2m has the shape .*; its chunks: it claims 200.0 GB"),
        (
            "t2m",
            [1000, 100, 5],
            [1, 1, 1],
            "t2m lacks 999 chunks of its 500000 chunk files, the first t2m/c/1/0/0",
        ),
    ],
)
def test_a_small_store_that_claims_much_is_refused(
    tmp_path: Path, name: str, shape: list[int], chunks: list[int], message: str
) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match=message):
        open_fields(write(tmp_path / "claims.zarr", name, shape=shape, chunk_grid=grid(*chunks)))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000


@pytest.mark.parametrize("value", [[], {"a": 1}, 3])
def test_attributes_that_are_no_texts_are_refused(tmp_path: Path, value: object) -> None:
    path = write(tmp_path / "own.zarr", "lat", attributes={"standard_name": value})
    with pytest.raises(DataError, match=r"own\.zarr: the attribute standard_name of lat must be a text, got"):
        open_fields(path)


@pytest.mark.parametrize(
    ("place", "message"), [("lat", "the coordinate lat lacks the chunk lat/c/0"), ("t2m", "t2m lacks")]
)
def test_missing_chunks_are_refused(tmp_path: Path, place: str, message: str) -> None:
    path = write(tmp_path / "lost.zarr", place)
    next(file for file in (path / place / "c").rglob("*") if file.is_file()).unlink()
    with pytest.raises(DataError, match=message):
        open_fields(path)


def test_a_store_within_bounds_is_opened(tmp_path: Path) -> None:
    regional().to_zarr(tmp_path / "small.zarr", zarr_format=2)
    assert open_fields(tmp_path / "small.zarr").sizes["time"] == 6


@pytest.mark.parametrize("value", [2**31 - 1, 7])
def test_lengths_in_a_blosc_header_are_compared(tmp_path: Path, value: int) -> None:
    from numcodecs import Blosc

    path = tmp_path / "blosc.zarr"
    data = xr.Dataset({"t2m": (("lat", "lon"), np.arange(400.0).reshape(20, 20))})
    data.to_zarr(path, zarr_format=2, encoding={"t2m": {"compressors": [Blosc()]}})
    (chunk,) = (path / "t2m").glob("0.0")
    content = bytearray(chunk.read_bytes())
    place = 4 if value > 100 else 12  # of the length of the content, and of the chunk itself
    content[place : place + 4] = value.to_bytes(4, "little")
    chunk.write_bytes(content)
    with pytest.raises(
        DataError, match=r"0\.0 is damaged: it declares .* bytes of content in .*; copy the store again"
    ):
        open_fields(path)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_chunks_of_land_are_not_written_and_not_missed(tmp_path: Path, zarr_format: int) -> None:
    fields = regional(rows=8, columns=8)
    land = fields.t2m.where((fields.lat > fields.lat[3]) | (fields.lon > fields.lon[3]))
    chunks = {"t2m": {"chunks": (2, 4, 4)}}
    path = tmp_path / "sea.zarr"
    land.to_dataset().to_zarr(path, zarr_format=zarr_format, consolidated=False, encoding=chunks)
    found = open_fields(path).t2m
    assert bool(found[:, :4, :4].isnull().all())
    xr.testing.assert_equal(found.load(), land)
    # A chunk of the sea that is missing at one time was lost.
    names = {2: "t2m/1.1.1", 3: "t2m/c/1/1/1"}
    (path / names[zarr_format]).unlink()
    with pytest.raises(DataError, match=f"t2m lacks 1 chunks .* the first {names[zarr_format]},"):
        open_fields(path)


def test_variables_of_a_folder_have_one_order(tmp_path: Path) -> None:
    names = [f"v{number}" for number in (3, 1, 4, 0, 5, 2)]
    fields = xr.merge([regional(name=name) for name in names]).assign_coords(height=2.0)
    fields.to_zarr(tmp_path / "several.zarr", zarr_format=3, consolidated=False)
    found = open_fields(tmp_path / "several.zarr")
    assert list(found.data_vars) == sorted(names)
    assert set(found.coords) == {"time", "lat", "lon", "height"}
    assert found.attrs == fields.attrs
