"""Truncated and damaged files are errors, never data."""

from __future__ import annotations

from pathlib import Path

import netCDF4
import numpy as np
import pytest
import xarray as xr

from smoe._integrity import check_netcdf_file
from smoe.errors import DataError
from smoe_paper.weather.archives import open_source
from weather_files import times_of_year, weatherbench2_dataset, write_weatherbench, write_weatherbench2

CLASSIC = ("NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF3_64BIT_DATA")


def cut(path: Path, length: int) -> None:
    with path.open("r+b") as file:
        file.truncate(length)


def only_file(folder: Path) -> Path:
    (path,) = (path for path in folder.rglob("*.nc"))
    return path


@pytest.mark.parametrize("format", CLASSIC)
def test_classic_file_cut_to_a_tenth_is_refused_though_the_library_reads_it(tmp_path, format):
    path = only_file(write_weatherbench(tmp_path, years=(1979,), variables=("t2m",), format=format, constants=False))
    length = path.stat().st_size
    cut(path, length // 10)
    with xr.open_dataset(path, engine="netcdf4") as dataset:
        assert np.isfinite(dataset["t2m"].values[0]).all()
    with pytest.raises(DataError, match=rf"is truncated: its header declares {length} bytes, it has {length // 10}"):
        open_source(tmp_path)


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


@pytest.mark.parametrize("share", [0.01, 0.5, 0.999])
def test_truncated_netcdf4_is_a_data_error(tmp_path, share):
    path = only_file(write_weatherbench(tmp_path, years=(1979,), variables=("t2m",), constants=False))
    cut(path, int(path.stat().st_size * share))
    with pytest.raises(DataError, match=r"2m_temperature_1979_5.625deg.nc.*(damaged|truncated|no NetCDF|empty)"):
        open_source(tmp_path).read("t2m", 1979)


def test_damage_inside_a_compressed_netcdf4_is_a_data_error(tmp_path):
    path = only_file(write_weatherbench(tmp_path, years=(1979,), variables=("t2m",), constants=False))
    with xr.open_dataset(path) as dataset:
        dataset.load()
    dataset.to_netcdf(path, encoding={"t2m": {"zlib": True, "fletcher32": True}}, engine="netcdf4")
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 64] = bytes(64)
    path.write_bytes(data)
    with pytest.raises(DataError, match="t2m cannot be read, the file is damaged"):
        open_source(tmp_path).read("t2m", 1979)


@pytest.mark.parametrize(("content", "says"), [(b"", "is empty"), (b"<html>404</html>", "is not a NetCDF file"),
                                               (b"CDF\x01\0\0", "ends inside its header")])  # fmt: skip
def test_other_content_is_named(tmp_path, content, says):
    path = only_file(write_weatherbench(tmp_path, years=(1979,), variables=("t2m",), constants=False))
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"2m_temperature_1979_5.625deg.nc {says}"):
        open_source(tmp_path)


@pytest.mark.parametrize("format", ["NETCDF3_CLASSIC", "NETCDF4"])
def test_a_file_whose_end_is_zeros_is_refused(tmp_path, format):
    # What a download leaves that reserves the space first and then stops.
    path = only_file(write_weatherbench(tmp_path, years=(1979,), steps=40, variables=("u",), levels=(500,),
                                        format=format, constants=False))  # fmt: skip
    length = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(length // 2)
        file.write(bytes(length - length // 2))
    with pytest.raises(DataError, match=r"is 0 everywhere|times have a gap|is there twice|another grid|cannot be read"):
        open_source(tmp_path).read("u_500", 1979)


TIMES = times_of_year(0, 10, 6, "1959-01-01T00")
LAYOUTS = {
    "v2": ({}, "2m_temperature/1.0.0"),
    "v3": ({"zarr_format": 3}, "2m_temperature/c/1/0/0"),
    "shards": ({"zarr_format": 3, "chunk_steps": 2, "shard_steps": 4}, "2m_temperature/c/1/0/0"),
}


@pytest.fixture(params=LAYOUTS)
def store(request, tmp_path):
    options, chunk = LAYOUTS[request.param]
    path = write_weatherbench2(tmp_path / "era5.zarr", weatherbench2_dataset(TIMES, ("t2m", "t"), (500,)), **options)
    assert (path / chunk).is_file()
    return path, path / chunk


def test_missing_chunk_is_refused_though_the_library_reads_it_as_nan(store):
    path, chunk = store
    chunk.unlink()
    with xr.open_dataset(path, engine="zarr", chunks=None, consolidated=(path / ".zmetadata").exists()) as dataset:
        assert np.isnan(dataset["2m_temperature"].values).any()
    with open_source(path) as source:
        source.read("t_500", 1959)
        with pytest.raises(DataError, match=r"2m_temperature lacks 1 chunks of its 3 chunk files, the first .*1.0.0,"):
            source.read("t2m", 1959)


def test_truncated_chunk_is_refused(store):
    path, chunk = store
    cut(chunk, chunk.stat().st_size // 2)
    with open_source(path) as source, pytest.raises(DataError, match=r"truncated|cannot be read|lacks"):
        source.read("t2m", 1959)


@pytest.mark.parametrize("first_value", [1, 0])
def test_accumulated_fields_may_lack_their_first_chunk(tmp_path, first_value):
    # The total of the first six hours is unknown; Zarr 3 leaves such a chunk out.
    dataset = weatherbench2_dataset(TIMES, ("t2m", "tp"))
    dataset["total_precipitation_6hr"][:1] = np.nan
    if not first_value:
        dataset["total_precipitation_6hr"][7] = np.nan
    path = write_weatherbench2(tmp_path / "era5.zarr", dataset, zarr_format=3, chunk_steps=1)
    assert not (path / "total_precipitation_6hr/c/0/0/0").exists()
    with open_source(path) as source:
        if first_value:
            assert np.isnan(source.read("tp", 1959)).all(axis=(1, 2)).tolist() == [True] + [False] * 9
        else:
            with pytest.raises(DataError, match=r"lacks 1 chunks of its 10 chunk files, the first .*c.7.0.0"):
                source.read("tp", 1959)
