"""Damaged files are refused in one line; the length that a classic NetCDF file declares is its own."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import random
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr

import smoe
from ens10_files import GRID, STARTS, member_fields, write_grib
from gridded_files import regional
from smoe._files import check_netcdf_file
from smoe.errors import DataError
from smoe.gridded._open import open_fields
from smoe.gridded._source import FieldSource, load_arrays


def read_fields(path: Path) -> Any:
    return load_arrays({str(name): field for name, field in open_fields(path).items()}, "inputs")


FORMATS: dict[str, tuple[Callable[[Path], Any], Callable[[Path], Any]]] = {
    "classic.nc": (lambda path: regional(8).to_netcdf(path, format="NETCDF3_CLASSIC"), read_fields),
    "64bit.nc": (lambda path: regional(8).to_netcdf(path, format="NETCDF3_64BIT"), read_fields),
    "four.nc": (lambda path: regional(8).to_netcdf(path, encoding={"t2m": {"zlib": True}}), read_fields),
    "two.zarr": (lambda path: regional(8).to_zarr(path, zarr_format=2), read_fields),
    "three.zarr": (lambda path: regional(8).to_zarr(path, zarr_format=3, consolidated=False), read_fields),
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


def write_levels(path: Path, names: tuple[str, ...], *, day: int = 1, step: int = 0) -> Path:
    """A field of each hour 0, 6, 12 and 18: `2t` at two metres, `t` at 850 hPa or at the surface."""
    import eccodes

    with path.open("wb") as file:
        for name, hour in itertools.product(names, range(0, 24, 6)):
            message = eccodes.codes_grib_new_from_samples("regular_ll_pl_grib1")
            short, _, level_type = name.partition(":")
            settings: dict[str, object] = {
                "Ni": 5, "Nj": 3, "latitudeOfFirstGridPointInDegrees": 50, "latitudeOfLastGridPointInDegrees": 48,
                "longitudeOfFirstGridPointInDegrees": 0, "longitudeOfLastGridPointInDegrees": 4,
                "iDirectionIncrementInDegrees": 1, "jDirectionIncrementInDegrees": 1, "dataDate": 20190300 + day,
                "dataTime": hour * 100, "step": step, "typeOfLevel": level_type or "surface", "shortName": short,
            }  # fmt: skip
            settings |= {"level": 850} if level_type == "isobaricInhPa" else {}
            for key, value in settings.items():
                eccodes.codes_set(message, key, value)
            eccodes.codes_set_values(message, 280.0 + hour + np.arange(15.0))
            eccodes.codes_write(message, file)
            eccodes.codes_release(message)
    return path


@pytest.mark.parametrize("converted", [False, True])
def test_fields_of_step_0_are_analyses(tmp_path: Path, converted: bool) -> None:
    for day in (1, 2):
        write_levels(tmp_path / f"era5-{day}.grib", ("2t",), day=day)
        if converted:
            raw = xr.open_dataset(tmp_path / f"era5-{day}.grib", engine="cfgrib", indexpath="", decode_timedelta=True)
            assert "step" in raw.coords and raw["time"].attrs["standard_name"] == "forecast_reference_time"
            raw.to_netcdf(tmp_path / f"era5-{day}.nc")
    path = str(tmp_path / f"era5-*.{'nc' if converted else 'grib'}")
    fields = open_fields(path)
    assert fields["time"].attrs["standard_name"] == "time" and "step" not in fields.coords
    model = smoe.GridRegressor("layer", lead="6h", filters=2, max_epochs=1, compare="no", device="cpu", progress=False)
    predicted = model.fit(path, path).predict(path)["t2m"]
    np.testing.assert_array_equal(predicted["time"], fields["time"] + np.timedelta64(6, "h"))
    assert predicted["time"].attrs["standard_name"] == "time"
    # A forecast of six hours is none.
    ahead = FieldSource(open_fields(write_levels(tmp_path / "ahead.grib", ("2t",), step=6)))
    assert ahead.lead_times is not None and ahead.lead_times.tolist() == [6 * 3600]


def test_fields_on_several_kinds_of_levels(tmp_path: Path) -> None:
    path = write_levels(tmp_path / "several.grib", ("2t", "t:isobaricInhPa"))
    assert set(open_fields(path).data_vars) == {"t2m", "t"}
    path = write_levels(tmp_path / "several.grib", ("2t", "t:surface", "t:isobaricInhPa"))
    message = r"holds t on isobaricInhPa \(instant\), t on surface .* do not make one data set .*filter_by_keys"
    with pytest.raises(DataError, match=message) as caught:
        open_fields(path)
    assert "\n" not in str(caught.value) and "damaged" not in str(caught.value)
    assert set(open_fields(path, variables=["t2m"]).data_vars) >= {"t2m"}
    chosen = open_fields(path, open_options={"filter_by_keys": {"typeOfLevel": "isobaricInhPa"}})
    assert set(chosen.data_vars) == {"t"}


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
