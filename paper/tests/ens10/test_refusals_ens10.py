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
from smoe_paper.atmosphere.fields import Grid, check_global
from smoe_paper.ens10.prepare import prepare
from smoe_paper.ens10.source import TASKS, open_ens10

SOME, Z500 = STARTS[:5], TASKS["z500"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_ens10(tmp_path / "root", "z500", starts=SOME)


def prepare_all(root: Path, members: int = 10, train_years: tuple[int, int] = (1998, 1998)) -> None:
    source = open_ens10(root, Z500, members)
    prepare(source, root, root.parent / "store", train_years, Silent())


def rewrite(path: Path, change: Callable[[xr.Dataset], xr.Dataset]) -> None:
    with xr.open_dataset(path) as dataset:
        dataset.load()
    change(dataset).drop_encoding().to_netcdf(path, engine="netcdf4")


def with_value(name: str, value: float, **where: int) -> Callable[[xr.Dataset], xr.Dataset]:
    def change(dataset: xr.Dataset) -> xr.Dataset:
        dataset[name][where] = value
        return dataset

    return change


TRUTH = "ERA5_z500.nc"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda ds: ds.isel(time=[0, 2, 1, 3, 4]), "but 1998-01-06T00:00 comes after 1998-01-10"),
        (lambda ds: ds.isel(time=[0, 1, 3, 4]), "lacks dates that forecasts are for, such as 1998-01-10"),
        (lambda ds: ds.assign_coords(time=ds.time + np.timedelta64(400, "D")), "as 1998-01-03; it has 1999"),
        # Dates that look right, over fields of other dates.
        (lambda ds: ds.roll(time=1, roll_coords=False), "nearer to the truth of a neighbouring date"),
        (with_value("Z", np.nan, time=4, plev=0, lat=0, lon=0), "ERA5_z500.nc: Z holds 1 NaN"),
        (with_value("Z", np.inf, time=0, plev=0, lat=1, lon=3), "which cannot be z in m2 s-2"),
        (
            lambda ds: ds.isel(lon=slice(0, 8)),
            "is on another grid than the first file: 9 latitudes .* and 8 longitudes",
        ),
        (lambda ds: ds.assign_coords(plev=ds.plev * 1.7), "has no level 500 hPa; it has 850"),
        (lambda ds: ds.rename(Z="Q"), "expected Z or z"),
        (lambda ds: ds.assign(Z=ds["Z"].assign_attrs(units="degC")), "Z is in 'degC', expected 'm2 s-2'"),
    ],
)
def test_a_truth_that_is_wrong(root: Path, change: Callable[[xr.Dataset], xr.Dataset], says: str) -> None:
    rewrite(root / TRUTH, change)
    with pytest.raises(DataError, match=says):
        prepare_all(root)


def test_missing_files_and_options_that_do_not_fit(root: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no members of t2m; expected ensemble/output"):
        open_ens10(root, TASKS["t2m"])
    with pytest.raises(DataError, match="does not exist; expected a folder of ENS-10"):
        open_ens10(tmp_path / "nowhere", Z500)
    with pytest.raises(DataError, match=r"no forecast is for 2001 to 2002; there are 1998"):
        prepare_all(root, train_years=(2001, 2002))
    (root / TRUTH).unlink()
    with pytest.raises(DataError, match=r"has no ERA5_z500.nc, the truth of z500"):
        prepare_all(root)


def test_members_that_are_wrong(tmp_path: Path) -> None:
    start = SOME[0]
    root = write_ens10(tmp_path / "root", "z500", starts=SOME, members=False)
    path = write_members(root, "pl", start, GRID, member_fields)
    for change, says in (
        (lambda ds: ds.isel(number=slice(0, 9)), r"z has 9 members \(1, 2, 3, 4, 5, 6, 7, 8, 9\), expected 10"),
        (lambda ds: ds.assign_coords(valid_time=ds.valid_time + np.timedelta64(1, "D")), "expected 48 h"),
        (lambda ds: ds.isel(isobaricInhPa=[1]), "has no level 500 hPa"),
        (
            with_value("u", np.nan, number=3, isobaricInhPa=0, latitude=1, longitude=2),
            "U holds 1 NaN, the first at member 4, latitude 67.5, longitude 45",
        ),
        (with_value("t", 1e5, number=3, isobaricInhPa=0, latitude=1, longitude=2), "which cannot be t in K"),
        (lambda ds: ds.isel(latitude=slice(0, 6)), "is on another grid: 6 latitudes from 90 to -22.5"),
        (lambda ds: ds.drop_vars("q"), "expected q"),
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
    with pytest.raises(DataError, match=r"19980108.nc is on another grid than the first file"):
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
    with pytest.raises(DataError, match=r"z has 9 members \(1, 2, .*, 9\), expected 10"):
        open_ens10(path.parent, Z500)
    write_grib(path, "pl", SOME[:1])
    content = path.read_bytes()
    path.write_bytes(content[: int(0.7 * len(content)) + 11])
    with pytest.raises(DataError, match=r"output.pl.20180101 is damaged or incomplete: the message at byte"):
        open_ens10(path.parent, Z500)
    path.write_bytes(content + content[: len(content) // 70])
    with pytest.raises(DataError, match="holds a field 2 times: z 19980101 0 48 isobaricInhPa 500 1; keep one"):
        open_ens10(path.parent, Z500)
    path.write_bytes(content)
    path.rename(path.with_name("output.pl.20180104"))
    with pytest.raises(DataError, match="started on 1998-01-01, but its name says 2018-01-04"):
        open_ens10(path.parent, Z500)
    path.with_name("output.pl.20180104").unlink()
    write_grib(path, "pl", SOME[:1], grid=Grid(GRID.latitude[:6], GRID.longitude))
    with pytest.raises(DataError, match=r"is on another grid: 6 latitudes from 90 to -22.5"):
        open_ens10(path.parent, Z500)
    write_grib(path, "pl", SOME[:1], leads=(24,))
    with pytest.raises(DataError, match=r"output.pl.20180101 holds no variable, expected z"):
        open_ens10(path.parent, Z500)


def test_global_grids() -> None:
    poles, columns = tuple(np.linspace(90, -90, 361)), tuple(np.arange(720) / 2)
    check_global(Grid(poles, columns), "here")
    for grid in (Grid(tuple(np.linspace(90, -60, 360)), columns), Grid(poles, tuple(np.arange(700.0)))):
        with pytest.raises(DataError, match="here is on another grid"):
            check_global(grid, "here")
