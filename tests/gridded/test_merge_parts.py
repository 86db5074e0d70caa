"""Data sets of several files are aligned by their coordinates, never by position."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from gridded_files import regional, times
from smoe.errors import DataError
from smoe.gridded._open import open_fields
from smoe.gridded._source import FieldSource


def read_all(data: object) -> dict[str, np.ndarray]:
    source = FieldSource(open_fields(data))
    fields = source.read(np.arange(source.num_positions))
    return {channel.name: fields[:, number] for number, channel in enumerate(source.channels)}


@pytest.mark.parametrize("change", ["reversed", "rounded", "turned"])
def test_rows_and_columns_are_brought_to_one_order(change: str) -> None:
    first, other = regional(4), regional(4, name="u", seed=1)
    expected = read_all(other)["u"]
    if change == "reversed":
        other = other.isel(lat=slice(None, None, -1))
    elif change == "rounded":
        other = other.assign_coords(lat=other["lat"].astype(np.float32) + np.float32(1e-5))
    else:
        other = other.isel(lon=[3, 4, 0, 1, 2])
    merged = read_all([first, other])
    np.testing.assert_array_equal(merged["u"], expected)
    np.testing.assert_array_equal(merged["t2m"], read_all(first)["t2m"])


def test_times_are_those_that_all_parts_have() -> None:
    first, other = regional(6), regional(6, name="u", seed=1)
    merged = open_fields([first, other.isel(time=[5, 1, 3, 4])])
    np.testing.assert_array_equal(merged["time"], times(6)[[1, 3, 4, 5]])
    np.testing.assert_array_equal(merged["u"], other["u"].isel(time=[1, 3, 4, 5]))
    np.testing.assert_array_equal(merged["t2m"], first["t2m"].isel(time=[1, 3, 4, 5]))


def test_a_part_of_one_time_is_static() -> None:
    height = regional(1, name="height", seed=2)
    source = FieldSource(open_fields([regional(4), height]))
    assert [(channel.name, channel.is_static) for channel in source.channels] == [("t2m", False), ("height", True)]
    np.testing.assert_array_equal(source.read(np.array([3]))[0, 1], height["height"].values[0])


def test_heights_and_bounds_of_single_files_do_not_conflict() -> None:
    def part(name: str, height: float) -> xr.Dataset:
        dataset = regional(4, name=name).assign_coords(height=((), height, {"units": "m", "standard_name": "height"}))
        dataset["lat_bnds"] = (("lat", "bnds"), np.full((3, 2), height))
        dataset["lat"].attrs["bounds"] = "lat_bnds"
        return dataset

    assert set(read_all([part("tas", 2.0), part("uas", 10.0)])) == {"tas", "uas"}


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (regional(4), "part 1 of inputs and part 2 of inputs both have 't2m' at 2001-01-01: rename one of them"),
        (regional(4, 3, 4, name="u"), "two parts of inputs are on different grids, 3 x 5 .* against 3 x 4"),
        (
            regional(4, name="u").assign_coords(time=times(4, "2005-01-01")),
            "no time in common: they lie from 2001-01-01 to 2001-01-04 and 2005-01-01 to 2005-01-04",
        ),
    ],
)
def test_parts_that_do_not_fit(other: xr.Dataset, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        open_fields([regional(4), other])
    assert "\n" not in str(caught.value)


def test_files_that_round_their_coordinates_and_files_of_one_time_follow_each_other(tmp_path: Path) -> None:
    small = regional(4)
    small.isel(time=slice(0, 2)).to_netcdf(tmp_path / "r1.nc")
    rounded = small.assign_coords(lat=("lat", small["lat"].values.astype(np.float32) + np.float32(1e-5)))
    rounded.isel(time=slice(2, 4), lat=slice(None, None, -1)).to_netcdf(tmp_path / "r2.nc")
    np.testing.assert_array_equal(read_all(str(tmp_path / "r?.nc"))["t2m"], small["t2m"].values)
    for number in range(4):
        small.isel(time=number).to_netcdf(tmp_path / f"s{number}.nc")
    np.testing.assert_array_equal(read_all(str(tmp_path / "s?.nc"))["t2m"], small["t2m"].values)


@pytest.mark.parametrize("units", ["degC", ""])
@pytest.mark.parametrize("as_list", [False, True])
def test_files_that_follow_each_other_have_the_same_units(tmp_path: Path, units: str, as_list: bool) -> None:
    small = regional(6)
    small.isel(time=slice(0, 3)).to_netcdf(tmp_path / "a.nc")
    other = small.isel(time=slice(3, 6)).copy(deep=True)
    other["t2m"].attrs["units"] = units
    other.to_netcdf(tmp_path / "b.nc")
    data = [tmp_path / "a.nc", tmp_path / "b.nc"] if as_list else str(tmp_path / "?.nc")
    with pytest.raises(DataError, match=rf"t2m is in 'K' in .*a\.nc and .*{units or 'without units'}.* in .*b\.nc"):
        open_fields(data)
    # Another spelling is no conflict, and does not lose the units.
    other["t2m"].attrs["units"] = "kelvin"
    (tmp_path / "b.nc").unlink()
    other.to_netcdf(tmp_path / "b.nc")
    joined = open_fields(data)
    assert joined["t2m"].attrs["units"] == "K"
    np.testing.assert_array_equal(joined["t2m"], small["t2m"])


def test_a_list_with_the_same_variables_follows_in_time() -> None:
    small = regional(6)
    parts = [small.isel(time=slice(3, 6)), small.isel(time=slice(0, 3)), regional(1, name="height")]
    np.testing.assert_array_equal(open_fields(parts)["t2m"].sortby("time"), small["t2m"])
    noleap = small.isel(time=slice(0, 3)).convert_calendar("noleap")
    with pytest.raises(DataError, match="is in the calendar standard and part 2 of inputs in noleap: convert one"):
        open_fields([small.isel(time=slice(3, 6)), noleap])
    more = small.isel(time=slice(0, 3)).assign(u=small["t2m"])
    with pytest.raises(
        DataError, match="part 2 of inputs and part 1 of inputs both have 't2m', but 'u' is in the first"
    ):
        open_fields([parts[0], more])
    np.testing.assert_array_equal(open_fields([parts[0], more], variables=["t2m"])["t2m"].sortby("time"), small["t2m"])


def test_times_that_not_all_parts_have_are_noted() -> None:
    merged = open_fields([regional(6).assign(co2=("time", np.arange(6.0))), regional(2, name="u")])
    times_note, left_out = FieldSource(merged).notes
    assert left_out == "variables of inputs that are left out: co2 (depends on time only)"
    assert times_note == "the parts of inputs have 6, 2 times, of which the 2 that all have are used"


def test_variables_of_time_alone_are_channels(tmp_path: Path) -> None:
    small = regional(6).assign(date=("time", np.arange(6)))
    # In a file of its own, of other times, in another order, along a dimension of another name.
    index = xr.Dataset({"nino": ("month", np.arange(4.0), {"units": "K"})}, {"month": times(4)[::-1]})
    index.to_netcdf(tmp_path / "nino.nc")
    source = FieldSource(open_fields([small, tmp_path / "nino.nc"]), with_series=True)
    assert [channel.name for channel in source.channels] == ["t2m", "nino"] and source.channels[1].units == "K"
    fields = source.read(np.asarray([2, 0]))
    np.testing.assert_array_equal(fields[:, 0], small["t2m"].values[[2, 0]])
    np.testing.assert_array_equal(fields[:, 1], np.broadcast_to([[[1.0]], [[3.0]]], (2, 3, 5)))
    assert "variables of inputs of time alone are the same at all pixels: nino" in source.notes
    named = FieldSource(small, ["date", "t2m"], with_series=True)
    assert [channel.name for channel in named.channels] == ["t2m", "date"]
    # Forecasts: the same at all lead times of a start.
    starts = regional(3).expand_dims(lead_time=np.arange(2) * np.timedelta64(6, "h"), axis=1).rename(time="init_time")
    starts = starts.assign(co2=("init_time", np.arange(3.0)))
    source = FieldSource(starts, with_series=True)
    np.testing.assert_array_equal(source.read(np.asarray([1, 4]))[:, 1, 0, 0], [0.0, 2.0])
    with pytest.raises(DataError, match="date of inputs depends on time only, but inputs and targets are fields"):
        FieldSource(small, ["date", "t2m"])
    with pytest.raises(DataError, match="width of inputs depends on lat only"):
        FieldSource(small.assign(width=("lat", np.arange(3.0))), ["width", "t2m"], with_series=True)


def test_levels_are_found_by_their_values(tmp_path: Path) -> None:
    levels = xr.concat([regional(4, seed=seed) for seed in range(3)], "plev", data_vars="all", coords="minimal")
    levels = levels.assign_coords(plev=("plev", [500.0, 700.0, 850.0], {"units": "hPa"})).transpose("time", ...)
    source = FieldSource(levels)
    assert [channel.name for channel in source.channels] == ["t2m_500", "t2m_700", "t2m_850"]
    pascals = levels.assign_coords(plev=("plev", [50000.0, 70000.0, 85000.0], {"units": "Pa"}))
    other = FieldSource(pascals.isel(plev=[2, 0, 1]), like=source.channels[::2])
    assert [channel.name for channel in other.channels] == ["t2m_500", "t2m_850"]
    np.testing.assert_array_equal(other.read(np.arange(4)), source.read(np.arange(4))[:, ::2])
    with pytest.raises(DataError, match=r"t2m of inputs has no level 700, but 850, 500"):
        FieldSource(pascals.isel(plev=[2, 0]), like=source.channels)
    levels.isel(time=slice(2)).to_netcdf(tmp_path / "a.nc")
    levels.isel(time=slice(2, 4), plev=[1, 2, 0]).to_netcdf(tmp_path / "b.nc")
    xr.testing.assert_equal(open_fields(tmp_path / "?.nc").load(), levels)


@pytest.mark.parametrize("kind", ["variables", "each time"])
def test_latitudes_that_are_variables_or_repeated_at_each_time(kind: str) -> None:
    small = regional(4).rename(lat="south_north", lon="west_east").drop_vars(["south_north", "west_east"])
    longitude, latitude = np.meshgrid(5.0 + np.arange(5), 40.0 + np.arange(3))
    for name, values, units in (("XLAT", latitude, "degree_north"), ("XLONG", longitude, "degree_east")):
        dims = ("south_north", "west_east") if kind == "variables" else ("time", "south_north", "west_east")
        small[name] = (dims, np.broadcast_to(values, tuple(small.sizes[dim] for dim in dims)), {"units": units})
    source = FieldSource(open_fields(small))
    assert source.grid.kind == "curvilinear" and [channel.name for channel in source.channels] == ["t2m"]
    np.testing.assert_array_equal(source.grid.rows, latitude)
    moving = small.copy(deep=True)
    if kind == "each time":
        moving["XLAT"][-1] += 1.0
        assert "XLAT" in [channel.name for channel in FieldSource(open_fields(moving)).channels]
