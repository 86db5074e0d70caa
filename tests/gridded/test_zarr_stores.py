"""Zarr stores that lack something, are damaged, or would run code."""

from __future__ import annotations

import json
import os
import pickle
import tomllib
from pathlib import Path
from typing import Any

import pytest
import xarray as xr

from gridded_files import regional
from smoe.errors import DataError
from smoe.gridded._open import open_fields

zarr = pytest.importorskip("zarr")


def write(path: Path, name: str, **metadata: object) -> Path:
    """Writes a small store and changes the metadata of an array afterwards."""
    regional().to_zarr(path, zarr_format=3, consolidated=False)
    file = path / name / "zarr.json"
    content = json.loads(file.read_text()) | metadata
    file.write_text(json.dumps(content))
    return path


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


class Code:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("is_linked", [False, True])
def test_no_store_is_unpickled(tmp_path: Path, is_linked: bool) -> None:
    path = tmp_path / "own.zarr"
    regional().to_zarr(path, zarr_format=2, consolidated=False)
    payload = path / "lat"
    if is_linked:
        payload = payload.rename(tmp_path / "payload")
        (path / "lat").symlink_to(payload)
    metadata = json.loads((payload / ".zarray").read_text())
    changed = {"dtype": "|O", "filters": [{"id": "vlen-utf8"}], "compressor": {"id": "pickle"}, "fill_value": ""}
    (payload / ".zarray").write_text(json.dumps(metadata | changed))
    (payload / "0").write_bytes(pickle.dumps(Code(tmp_path / "ran")))
    with pytest.raises(DataError, match=r"own\.zarr: it cannot be read, the file is damaged or incomplete \(Pickle"):
        open_fields(path)
    assert not (tmp_path / "ran").exists()


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


def test_versions_of_numcodecs_that_unpickle_are_not_installed() -> None:
    extras = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    with_zarr = {name: each for name, each in extras.items() if any(text.startswith("zarr") for text in each)}
    assert with_zarr and all("numcodecs>=0.16.6" in each for each in with_zarr.values())


def test_variables_of_a_folder_have_one_order(tmp_path: Path) -> None:
    names = [f"v{number}" for number in (3, 1, 4, 0, 5, 2)]
    fields = xr.merge([regional(name=name) for name in names]).assign_coords(height=2.0)
    fields.to_zarr(tmp_path / "several.zarr", zarr_format=3, consolidated=False)
    found = open_fields(tmp_path / "several.zarr")
    assert list(found.data_vars) == sorted(names)
    assert set(found.coords) == {"time", "lat", "lon", "height"}
    assert found.attrs == fields.attrs
