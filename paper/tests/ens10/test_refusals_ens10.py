"""What is wrong with a data set is refused: found, expected, where."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from ens10_files import GRID, STARTS, member_fields, write_ens10, write_grib, write_members
from memory_source import Silent
from smoe.errors import DataError
from smoe_paper.atmosphere.axes import Grid
from smoe_paper.ens10.commands import Preparation
from smoe_paper.ens10.files import ENS10_GRID, START_DAYS, check_calendar, check_global
from smoe_paper.ens10.prepare import prepare
from smoe_paper.ens10.sources import is_ens10, open_ens10
from smoe_paper.ens10.store import EnsembleStore

SOME = STARTS[:5]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_ens10(tmp_path / "root", "z500", starts=SOME, members=False)


def prepare_all(root: Path, members: int = 10, **options) -> None:
    with open_ens10(root, "z500", members) as source:  # pyright: ignore[reportArgumentType]
        prepare(source, root, root.parent / "store", Preparation(**{"train_years": (1998, 1998), **options}), Silent())


def rewrite(path: Path, change: Callable[[xr.Dataset], xr.Dataset]) -> None:
    with xr.open_dataset(path) as dataset:
        dataset.load()
    change(dataset).drop_encoding().to_netcdf(path, engine="netcdf4")


def with_value(name: str, value: float, **where: int) -> Callable[[xr.Dataset], xr.Dataset]:
    def change(dataset: xr.Dataset) -> xr.Dataset:
        dataset[name][where] = value
        return dataset

    return change


MEAN, STD, TRUTH = "ENS10_pl_mean.nc", "ENS10_pl_std.nc", "ERA5_z500.nc"


@pytest.mark.parametrize(
    ("file", "change", "says"),
    [
        (MEAN, lambda ds: ds.isel(time=[0, 2, 1, 3, 4]), "dates are not in order: 1998-01-06 comes after 1998-01-10"),
        (MEAN, lambda ds: ds.isel(time=[0, 1, 1, 2, 3]), "the date 1998-01-06 is there twice"),
        (STD, lambda ds: ds.isel(time=[0, 1, 3, 4]), r"does not have the 5 dates of .*lacks 1, such as 1998-01-10"),
        (STD, lambda ds: ds.assign_coords(time=ds.time + np.timedelta64(1, "D")), "has 5 others, such as 1998-01-04"),
        (TRUTH, lambda ds: ds.isel(time=[0, 1, 3, 4]), r"lacks 1 of 5 dates .* as 1998-01-10 \(start 1998-01-08\)"),
        (TRUTH, lambda ds: ds.assign_coords(time=ds.time + np.timedelta64(400, "D")), "lacks 5 of 5 dates"),
        # Dates that look right, over fields of other dates.
        (TRUTH, lambda ds: ds.roll(time=1, roll_coords=False), "nearer to the truth of a neighbouring date"),
        (MEAN, with_value("T", np.nan, time=2, plev=0, lat=1, lon=3),
         r"T holds 1 NaN, .* the first at 1998-01-10, latitude 67.5, longitude 67.5"),
        (TRUTH, with_value("Z", np.nan, time=4, plev=0, lat=0, lon=0), "ERA5_z500.nc: Z holds 1 NaN"),
        (MEAN, with_value("Z", np.inf, time=0, plev=0, lat=1, lon=3), "which cannot be z in m2 s-2"),
        (STD, with_value("U", -1.0, time=0, plev=0, lat=1, lon=3), "which cannot be the spread of U"),
        (MEAN, lambda ds: ds.isel(lat=slice(0, 8)), "is on another grid: 8 latitudes from 90 to -67.5"),
        (STD, lambda ds: ds.isel(lon=slice(0, 16, 2)), "is on another grid: 9 latitudes .* and 8 longitudes"),
        (TRUTH, lambda ds: ds.isel(lon=slice(0, 8)), "is on another grid"),
        (MEAN, lambda ds: ds.isel(plev=[1]), "has no level 500 hPa; it has 850"),
        (MEAN, lambda ds: ds.drop_vars("Q"), "expected Q"),
        (MEAN, lambda ds: ds.assign_attrs(num_members=9), "holds statistics of 9 members, expected 10"),
        (MEAN, lambda ds: ds.assign(T=ds["T"].assign_attrs(units="degC")), "T is in 'degC', expected 'K'"),
    ],
)  # fmt: skip
def test_a_file_that_is_wrong(root: Path, file: str, change: Callable[[xr.Dataset], xr.Dataset], says: str) -> None:
    rewrite(root / file, change)
    with pytest.raises(DataError, match=says):
        prepare_all(root)
    with pytest.raises(DataError, match=r"not finished|no ensemble store"):
        EnsembleStore.open(root.parent / "store")


def test_south_to_north_is_turned_round_and_said(root: Path) -> None:
    with open_ens10(root, "z500", 10) as source:
        expected = next(iter(source.read(source.blocks()[0]))).statistics
    for file in (MEAN, STD):
        rewrite(root / file, lambda ds: ds.isel(lat=slice(None, None, -1)).roll(lon=5, roll_coords=True))
    with open_ens10(root, "z500", 10) as source:
        assert source.notices == ["latitude runs south to north: turned round"] and source.grid == GRID
        np.testing.assert_array_equal(next(iter(source.read(source.blocks()[0]))).statistics, expected)


def test_missing_files(root: Path, tmp_path: Path) -> None:
    assert is_ens10(root) and not is_ens10(tmp_path)
    for task, says in (
        ("t2m", "holds no forecasts for t2m; expected ENS10_sfc_mean.nc"),
        ("t500", "no task is named 't500'"),
    ):
        with pytest.raises(DataError, match=says):
            open_ens10(root, task, 10)  # pyright: ignore[reportArgumentType]
    for file, says in (
        (TRUTH, "has no ERA5_z500.nc, the truth of z500"),
        (STD, "has ENS10_pl_mean.nc but not ENS10_pl_std"),
    ):
        (root / file).unlink()
        with pytest.raises(DataError, match=says):
            prepare_all(root)
    with pytest.raises(DataError, match="does not exist; expected a folder of ENS-10"):
        open_ens10(tmp_path / "nowhere", "z500", 10)


def test_options_that_do_not_fit(root: Path) -> None:
    with pytest.raises(DataError, match=r"no forecast is for 2001 to 2002; there are 1998"):
        prepare_all(root, train_years=(2001, 2002))
    with pytest.raises(DataError, match="goes from the first to the last year, got 1999 1998"):
        prepare_all(root, train_years=(1999, 1998))
    for efi, says in (
        ("file", "there is no efi_z500.nc"),
        ("computed", "is computed from .*members, which are not there"),
    ):
        with pytest.raises(DataError, match=says):
            prepare_all(root, efi=efi)
    with pytest.raises(DataError, match="--members must be 5 or 10, got 9"):
        prepare_all(root, members=9)


def test_members_that_are_wrong(root: Path, tmp_path: Path) -> None:
    start = SOME[0]
    path = write_members(root, "pl", start, GRID, member_fields)
    with pytest.raises(DataError, match=r"does not have the 5 dates .*lacks 4, such as 1998-01-04"):
        prepare_all(root)
    for change, says in (
        (lambda ds: ds.isel(number=slice(0, 9)), r"z has 9 members \(1, 2, 3, 4, 5, 6, 7, 8, 9\), expected 10"),
        (lambda ds: ds.assign_coords(valid_time=ds.valid_time + np.timedelta64(1, "D")), "a lead of 48 h"),
        (lambda ds: ds.isel(isobaricInhPa=[1]), "has no level 500 hPa"),
        (
            with_value("u", np.nan, number=3, isobaricInhPa=0, latitude=1, longitude=2),
            "U holds 1 NaN, .* the first at member 4, latitude 67.5, longitude 45",
        ),
        (with_value("t", 1e5, number=3, isobaricInhPa=0, latitude=1, longitude=2), "which cannot be t in K"),
        (lambda ds: ds.isel(latitude=slice(0, 6)), "is on another grid: 6 latitudes from 90 to -22.5"),
        (lambda ds: ds.drop_vars("q"), "has no q; it has"),
    ):
        write_members(root, "pl", start, GRID, member_fields)
        rewrite(path, change)
        with pytest.raises(DataError, match=says):
            prepare_all(root, members=5)
    write_members(root, "pl", start, GRID, member_fields).rename(path.with_name("output.pl.19980107.nc"))
    with pytest.raises(DataError, match="started on 1998-01-01, but its name says 1998-01-07"):
        prepare_all(root, members=5)


def test_one_file_of_members_that_is_not_like_the_others(root: Path) -> None:
    for start in SOME:
        write_members(root, "pl", start, GRID, member_fields)
    third = root / "ensemble" / "output.pl.19980108.nc"
    content = third.read_bytes()
    coarse = Grid(GRID.latitude[::2], GRID.longitude[::2])
    write_members(root, "pl", SOME[2], coarse, lambda name, level, start: member_fields(name, level, start, coarse))
    with pytest.raises(DataError, match=r"19980108.nc is on a grid of \(5, 8\), the first file on \(9, 16\)"):
        prepare_all(root, members=5)
    third.write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=r"19980108.nc: it cannot be read, the file is damaged or incomplete"):
        prepare_all(root, members=5)
    # Members of one date under another date's name and times: the forecasts fit other truths.
    for start, other in zip(SOME, np.roll(SOME, 1), strict=True):
        write_members(root, "pl", start, GRID, lambda name, level, _, other=other: member_fields(name, level, other))
    with pytest.raises(DataError, match="nearer to the truth of a neighbouring date"):
        prepare_all(root, members=5)


def test_grib_that_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "root" / "output.pl.20180101"
    write_grib(path, "pl", SOME[:1], tuple(range(1, 10)))
    with pytest.raises(DataError, match=r"z of 1998-01-01 has 9 members \(1, 2, .*, 9\), expected 10"):
        open_ens10(path.parent, "z500", 10)
    write_grib(path, "pl", SOME[:1])
    content = path.read_bytes()
    path.write_bytes(content[: int(0.7 * len(content)) + 11])
    with pytest.raises(DataError, match=r"output.pl.20180101 is damaged or incomplete: the message at byte"):
        open_ens10(path.parent, "z500", 10)
    path.write_bytes(content + content[: len(content) // 70])
    with pytest.raises(DataError, match="holds z of 1998-01-01, member 1, 2 times"):
        open_ens10(path.parent, "z500", 10)
    path.write_bytes(content)
    path.rename(path.with_name("output.pl.20180104"))
    with pytest.raises(DataError, match="started on 1998-01-01, but its name says 2018-01-04"):
        open_ens10(path.parent, "z500", 10)
    path.with_name("output.pl.20180104").unlink()
    write_grib(path, "pl", SOME[:1], grid=Grid(GRID.latitude[:6], GRID.longitude))
    with pytest.raises(DataError, match=r"is on another grid: 6 latitudes from 90 to -22.5"):
        open_ens10(path.parent, "z500", 10)
    write_grib(path, "pl", SOME[:1], leads=(24,))
    with pytest.raises(DataError, match=r"holds no forecast of .* for 48 h on 500 hPa"):
        open_ens10(path.parent, "z500", 10)


def test_days_and_grid_of_ens10() -> None:
    assert len(START_DAYS) == 105 and {"01-01", "01-04", "02-26", "12-31"} <= START_DAYS and "01-03" not in START_DAYS
    check_calendar(SOME, ENS10_GRID.shape)
    # Starts taken for the times that forecasts are for.
    with pytest.raises(
        DataError, match="5 of 5 forecasts do not start on a day of ENS-10: the first is valid on 1998-01-01"
    ):
        check_calendar(SOME - np.timedelta64(2, "D"), ENS10_GRID.shape)
    check_calendar(SOME - np.timedelta64(2, "D"), GRID.shape)
    assert check_global(np.linspace(90, -90, 361), np.arange(720) / 2, "here") == ENS10_GRID
    for rows, columns in (
        (np.linspace(90, -89.5, 360), np.arange(720) / 2),
        (np.linspace(90, -90, 361), np.arange(700) / 2),
    ):
        with pytest.raises(DataError, match="here is on another grid"):
            check_global(rows, columns, "here")
