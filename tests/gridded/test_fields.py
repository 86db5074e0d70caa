from __future__ import annotations

import os
import stat
from pathlib import Path

import numcodecs
import numpy as np
import pytest
import xarray as xr
from zarr.codecs import BloscCodec

from gridded_files import regional, times
from smoe.errors import DataError
from smoe.gridded._open import open_fields
from smoe.gridded._output import check_output, with_provenance, write_cf
from smoe.gridded._source import FieldSource
from smoe.gridded._tables import (
    FieldMoments,
    block_rows,
    check_gaps,
    collect_fields,
    find_mark,
    find_outlier,
    free_memory,
    has_gap,
)


def forecasts() -> xr.Dataset:
    values = np.random.default_rng(1).normal(size=(4, 3, 2, 3)).astype(np.float32)
    coords = {
        "init_time": times(4),
        "lead_time": ("lead_time", [0, 24, 48], {"units": "hours"}),
        "lat": [10.0, 20.0],
        "lon": [0.0, 1.0, 2.0],
    }
    return xr.Dataset({"t2m": (("init_time", "lead_time", "lat", "lon"), values, {"units": "K"})}, coords=coords)


def test_levels_and_static_fields_become_channels_in_one_order() -> None:
    small = regional(4)
    levels = np.random.default_rng(2).normal(size=(4, 2, 3, 5)).astype(np.float32)
    # North to south, and with the dimensions in another order than the other variables.
    small["t"] = (("time", "level", "lat", "lon"), levels)
    small = small.assign_coords(level=("level", [850.0, 500.0], {"units": "hPa"}))
    small["height"] = (("lon", "lat"), np.arange(15.0).reshape(5, 3))
    turned = small.isel(lat=slice(None, None, -1))
    source = FieldSource(turned)
    assert [channel.name for channel in source.channels] == ["t2m", "t_850", "t_500", "height"]
    assert [channel.is_static for channel in source.channels] == [False, False, False, True]
    read = source.read(np.array([2, 0]))
    np.testing.assert_array_equal(read[:, 0], small["t2m"].values[[2, 0]])
    np.testing.assert_array_equal(read[:, 1:3], levels[[2, 0]])
    np.testing.assert_array_equal(read[:, 3], np.broadcast_to(small["height"].values.T, (2, 3, 5)))
    table = collect_fields(source, np.array([3, 1, 1]), block_bytes=1)
    assert table.positions.tolist() == [1, 3] and table.values.shape == (2, 3, 3, 5) and len(table.static) == 1
    np.testing.assert_array_equal(table.fields(table.rows_of(np.array([3]))), source.read(np.array([3])))


def test_forecasts_are_read_by_start_and_lead() -> None:
    dataset = forecasts()
    source = FieldSource(dataset)
    assert source.num_positions == 12
    positions = np.array([11, 0, 4, 5])
    expected = dataset["t2m"].values.reshape(12, 1, 2, 3)[positions]
    np.testing.assert_array_equal(source.read(positions), expected)


def test_a_stopped_stream_goes_on_from_its_last_block(tmp_path: Path) -> None:
    small = regional(10)
    small["t2m"][7, 0, 0] = np.nan
    whole = collect_fields(FieldSource(small), np.arange(10))
    source = FieldSource(small)
    row_bytes = 2 * 4 * 15
    assert block_rows(source, 3 * row_bytes) == 3
    read: list[int] = []

    def stop_after_two_blocks(done: int, total: int) -> None:
        read.append(done)
        if len(read) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect_fields(
            source, np.arange(10), folder=tmp_path, block_bytes=3 * row_bytes, progress=stop_after_two_blocks
        )
    again: list[int] = []
    table = collect_fields(
        source, np.arange(10), folder=tmp_path, block_bytes=3 * row_bytes, progress=lambda done, _: again.append(done)
    )
    assert read == [3, 6] and again == [9, 10]
    assert isinstance(table.values, np.memmap)
    np.testing.assert_array_equal(table.values, whole.values)
    np.testing.assert_array_equal(table.num_missing, whole.num_missing)
    np.testing.assert_array_equal(table.ever_missing, whole.ever_missing)
    # Other times make another table: nothing of the old one is taken over.
    other = collect_fields(source, np.arange(5), folder=tmp_path, block_bytes=3 * row_bytes)
    np.testing.assert_array_equal(other.values, whole.values[:5])


def test_steady_masks_are_kept_and_other_gaps_refused() -> None:
    small = regional(5)
    small["t2m"][:, 1, 2] = np.nan
    source = FieldSource(small)
    table = collect_fields(source, np.arange(5), block_bytes=1)
    check_gaps(table, source, "refuse")
    assert table.always_missing.sum() == 1 and table.has_steady_gaps.all() and not has_gap(table).any()
    small["t2m"][3, 0, :2] = np.nan
    table = collect_fields(source, np.arange(5), block_bytes=1)
    with pytest.raises(DataError, match=r"t2m of inputs has 2 missing values at 2001-01-04 .* at 1 of 5 times"):
        check_gaps(table, source, "refuse")
    check_gaps(table, source, "drop")
    assert has_gap(table).tolist() == [False, False, False, True, False]
    small["t2m"][:] = np.nan
    with pytest.raises(DataError, match="t2m of inputs has no value at all"):
        check_gaps(collect_fields(source, np.arange(5)), source, "fill")


def test_variables_that_are_no_fields_are_named() -> None:
    small = regional(3)
    small["hour"] = ("time", np.arange(3.0))
    small["place"] = (("lat", "lon"), np.full((3, 5), "land"))
    small["wave"] = (("time", "lat", "lon"), np.ones((3, 3, 5), complex))
    small["age"] = (("lat", "lon"), np.ones((3, 5), "timedelta64[ns]"))
    small["time_bnds"] = (("time", "two"), np.zeros((3, 2)))
    small["crs"] = ((), 0)
    source = FieldSource(small)
    assert [channel.name for channel in source.channels] == ["t2m"]
    assert source.notes == (
        "variables of inputs that are left out: hour (depends on time only), place (holds text), wave (holds complex "
        "numbers), age (holds time differences)",
    )
    with pytest.raises(DataError, match=r"hour of inputs depends on time only, .* dataset\['hour'\].broadcast_like"):
        FieldSource(small, ["t2m", "hour"])
    with pytest.raises(DataError, match=r"wave of inputs holds complex numbers, .*: leave it out"):
        FieldSource(small, ["wave"])
    small["vectors"] = (("time", "ts", "lat", "lon"), np.zeros((3, 2, 3, 5)))
    with pytest.raises(DataError, match=r"'ts'.*leave vectors out: input_variables \(--input-variables\) names those"):
        FieldSource(small)


@pytest.mark.parametrize("kind", ["range", "ends", "packed", "many"])
def test_values_outside_of_the_valid_range_are_missing(tmp_path: Path, kind: str) -> None:
    small = regional(6).clip(270.0, 290.0)
    small["t2m"][2, 0, 0], small["t2m"][2, 0, 1] = 0.0, 5000.0
    encoding = {}
    if kind == "ends":
        small["t2m"].attrs |= {"units": "K", "valid_min": np.float32(200.0), "valid_max": np.float32(290.0)}
    elif kind == "range":
        small["t2m"].attrs |= {"units": "K", "valid_range": [200.0, 290.0]}
    else:
        small["t2m"].attrs |= {"units": "K", "valid_range": np.array([0, 900], np.int16)}
        encoding = {"t2m": {"dtype": "int16", "scale_factor": 0.2, "add_offset": 200.0, "_FillValue": -9}}
    small.isel(time=slice(0, 3)).to_netcdf(tmp_path / "a1.nc", encoding=encoding)
    if kind == "many":
        encoding["t2m"]["add_offset"] = 190.0
    small.isel(time=slice(3, 6)).to_netcdf(tmp_path / "a2.nc", encoding=encoding)
    source = FieldSource(open_fields(str(tmp_path / "a?.nc")))
    table = collect_fields(source, np.arange(6))
    assert source.num_invalid == {"t2m": 2} and np.isnan(table.values[2, 0, 0, :2]).all()
    assert int(np.isnan(table.values).sum()) == 2
    with pytest.raises(DataError, match=r"2 missing values at 2001-01-03 .*\(2 values lie outside of its valid range,"):
        check_gaps(table, source, "refuse")


def test_values_far_from_all_others_are_found_and_rain_is_not() -> None:
    def found(change: str) -> str | None:
        small = regional(40)
        if change == "pixel":
            small["t2m"][3, 1, 2] = 5000.0
        elif change == "field":
            small["t2m"][3] = 0.0
        elif change == "rain":
            small["t2m"] = np.maximum(small["t2m"] - 290.0, 0.0) ** 4
        elif change == "storms":
            small["t2m"] = np.exp(0.6 * (small["t2m"] - 280.0))
        elif change == "masked":
            small["t2m"][:, 0, 0], small["t2m"][7] = np.nan, np.nan
        source = FieldSource(small)
        return find_outlier(collect_fields(source, np.arange(40), block_bytes=1), source)

    pixel, field = found("pixel"), found("field")
    assert pixel is not None and pixel.startswith(
        "t2m of inputs is 5000 at 2001-01-04 at latitude 41, longitude 7, where"
    )
    assert field is not None and "is 0 at 2001-01-04 at latitude 40, longitude 5 and 14 more" in field
    assert found("none") is None and found("rain") is None and found("storms") is None and found("masked") is None


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_moments_of_blocks_are_those_of_all(size: float) -> None:
    offset = 50000.0 if size == 1.0 else 3.0
    values = (size * (offset + np.random.default_rng(0).normal(size=(17, 2, 3, 5)))).astype(np.float32)
    values[3, 0, 1, 1] = np.nan
    values[:, 1, 2, 2] = np.nan
    moments = FieldMoments((2, 3, 5))
    for first in range(0, 17, 4):
        moments.add(values[first : first + 4])
    exact = values.astype(np.float64)
    mean, std = moments.by_channel()
    np.testing.assert_allclose(mean, np.nanmean(exact, axis=(0, 2, 3)), rtol=1e-12 if size == 1.0 else 1e-6)
    np.testing.assert_allclose(std, np.nanstd(exact, axis=(0, 2, 3)), rtol=1e-6)
    pixel_mean, pixel_std = moments.by_pixel()
    assert np.isnan(pixel_mean[1, 2, 2]) and np.isnan(pixel_mean).sum() == 1
    is_there = ~np.isnan(pixel_mean)
    np.testing.assert_allclose(pixel_std[is_there], np.nanstd(exact[:, is_there], axis=0), rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda d: d.rename(t2m="x")[[]], "no variable on a grid"),
        (lambda d: d.assign(u=d.t2m.isel(lat=slice(0, 2)).rename(lat="latitude")), "different grids"),
        (lambda d: d.assign(u=d.t2m.isel(time=slice(0, 2)).rename(time="valid_time")), "different times"),
    ],
)
def test_variables_that_do_not_go_together_are_refused(make: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        FieldSource(make(regional(4)))  # type: ignore[operator]
    with pytest.raises(DataError, match="inputs has no variable 't2n'; did you mean 't2m'"):
        FieldSource(regional(3), ["t2n"])


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("is_blosc", [False, True])
@pytest.mark.parametrize("damage", ["truncated", "missing", "empty"])
def test_a_damaged_chunk_is_refused(tmp_path: Path, damage: str, version: int, is_blosc: bool) -> None:
    small = regional(8, 20, 30)
    path = tmp_path / "a.zarr"
    codec = BloscCodec() if version == 3 else numcodecs.Blosc()
    encoding = {"t2m": {"compressors": (codec,)}} if is_blosc else None
    small.chunk(time=2).to_zarr(path, consolidated=False, zarr_format=version, encoding=encoding)  # type: ignore[call-overload]
    chunks = sorted(
        file for file in (path / "t2m").rglob("*") if file.is_file() and not file.name.startswith((".z", "zarr"))
    )
    assert len(chunks) == 4
    if damage == "missing":
        chunks[1].unlink()
    else:
        chunks[1].write_bytes(chunks[1].read_bytes()[: 500 if damage == "truncated" else 0])
    damaged = "t2m of inputs cannot be read, the file is damaged or incomplete"
    with pytest.raises(DataError, match=damaged if damage == "truncated" else "t2m lacks 1 chunks"):
        collect_fields(FieldSource(open_fields(path)), np.arange(8))


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.nc"
    regional(8, 20, 30).to_netcdf(path)
    path.write_bytes(path.read_bytes()[:9000])
    with pytest.raises(DataError, match=r"a\.nc"):
        collect_fields(FieldSource(open_fields(path)), np.arange(8))
    with pytest.raises(DataError, match="does not exist"):
        open_fields(tmp_path / "b.nc")
    with pytest.raises(DataError, match="no file matches"):
        open_fields(str(tmp_path / "c*.nc"))


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_output_is_whole_or_not_there(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"out{suffix}"
    small = with_provenance(regional(4).assign_attrs(history="earlier"), "made by a test")
    write_cf(small, path)
    back = xr.open_dataset(path, engine="netcdf4" if suffix == ".nc" else "zarr", decode_timedelta=False)
    xr.testing.assert_equal(back[["t2m"]].load(), small)
    assert back.attrs["Conventions"] == "CF-1.11" and back.attrs["history"].endswith("made by a test\nearlier")
    back.close()
    with pytest.raises(DataError, match="exists already"):
        write_cf(small, path)
    write_cf(small, path, overwrite=True)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]

    class Stop(Exception):
        pass

    def stop(*_: object) -> None:
        raise Stop

    broken = tmp_path / f"broken{suffix}"
    lazy = small.copy()
    lazy["t2m"] = xr.apply_ufunc(stop, small["t2m"].chunk(time=2), dask="parallelized", output_dtypes=[np.float32])
    with pytest.raises(Stop):
        write_cf(lazy, broken)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_names_that_a_file_cannot_have(tmp_path: Path) -> None:
    for suffix in (".nc", ".zarr"):
        with pytest.raises(DataError, match="'t/2m' cannot be the name of a variable in a file, rename it"):
            write_cf(regional(4, name="t/2m"), tmp_path / f"out{suffix}")
    with pytest.raises(DataError, match=r"illegal characters: .*; rename the variable, or write a \.zarr"):
        write_cf(regional(4, name="t2m "), tmp_path / "out.nc")
    assert not list(tmp_path.iterdir())


def test_an_output_that_cannot_be_written_is_refused_first(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="must end with"):
        check_output(tmp_path / "out.txt")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="is a file"):
        check_output(tmp_path / "file" / "out.nc")
    folder = tmp_path / "readonly"
    folder.mkdir()
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    # A superuser may write to the folder nevertheless, but nobody below /proc.
    unwritable = Path("/proc/smoe") if os.access(folder, os.W_OK) else folder
    with pytest.raises(DataError, match=r"out\.nc cannot be written"):
        write_cf(regional(2), unwritable / "out.nc")


@pytest.mark.parametrize(("rows_that_fit", "expected"), [(25, 20), (10, 10), (3, 10), (2, 2), (1, 1)])
def test_blocks_are_whole_chunks_of_the_file(tmp_path: Path, rows_that_fit: int, expected: int) -> None:
    regional(40).chunk(time=10).to_zarr(tmp_path / "x.zarr", consolidated=False)
    source = FieldSource(open_fields(tmp_path / "x.zarr"))
    # Reading holds a block twice.
    assert block_rows(source, rows_that_fit * 2 * 4 * 15) == expected


@pytest.mark.parametrize("mark", [-9999.0, 1e20, -999.0, 9.969209968386869e36, np.inf])
def test_infinite_values_and_marks_that_no_attribute_declares_are_refused(mark: float) -> None:
    dataset = regional(4)
    dataset["t2m"][2, 1, :2] = mark
    what = "infinite values" if np.isinf(mark) else f"values of {mark:g}".replace("+", r"\+")
    with pytest.raises(DataError, match=f"t2m of inputs has 2 {what} at 2001-01-03[:,]"):
        collect_fields(FieldSource(dataset), np.arange(4))
    static = regional(4).assign(height=dataset["t2m"].isel(time=2, drop=True))
    with pytest.raises(DataError, match=f"height of inputs has 2 {what}[:,]"):
        collect_fields(FieldSource(static), np.arange(4))


def test_values_that_happen_to_be_marks() -> None:
    fields = np.random.default_rng(0).normal(-800.0, 300.0, (3, 2, 4, 5)).astype(np.float32)
    fields[1, 1, 2, 2] = -9999.0 / 3.0
    fields[0, 0, 0, 0] = -999.0
    assert find_mark(fields) is None
    # A field that is a mark everywhere may be a constant; NaN beside it does not count.
    fields[:, 1] = -9999.0
    fields[0, 1, 0, 0] = np.nan
    assert find_mark(fields) is None
    fields[0, 1, 0, 1:3] = 3.0, 4.0
    assert find_mark(fields) == (1, -9999.0)


@pytest.mark.parametrize("version", [1, 2])
def test_free_memory_is_that_of_the_control_group(tmp_path: Path, version: int) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9000000 kB\nMemAvailable: 4000000 kB\n")
    assert free_memory(tmp_path) == 4_096_000_000
    (tmp_path / "proc/self/cgroup").write_text("0::/job\n" if version == 2 else "3:memory:/job\n")
    group = tmp_path / "sys/fs/cgroup" / ("job" if version == 2 else "memory/job")
    group.mkdir(parents=True)
    limit, used = ("max", "current") if version == 2 else ("limit_in_bytes", "usage_in_bytes")
    (group / f"memory.{limit}").write_text("1000000000\n")
    (group / f"memory.{used}").write_text("700000000\n")
    (group / "memory.stat").write_text("anon 1\ninactive_file 200000000\n")
    assert free_memory(tmp_path) == 500_000_000
    (group / f"memory.{limit}").write_text("max\n")
    assert free_memory(tmp_path) == 4_096_000_000
