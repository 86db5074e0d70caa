from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from smoe.errors import DataError
from smoe.gridded._axes import find_axes
from smoe.gridded._grids import HorizontalGrid, Orientation, Regridding, read_grid
from smoe.gridded._source import FieldSource


def read(latitude: np.ndarray, longitude: np.ndarray) -> tuple[HorizontalGrid, Orientation, xr.DataArray]:
    """The grid of a field that holds latitude + 1000 * longitude, so that each value names its place."""
    values = np.asarray(latitude)[:, None] + 1000.0 * np.mod(np.asarray(longitude), 360.0)
    array = xr.DataArray(values, dims=("lat", "lon"), coords={"lat": latitude, "lon": longitude}, name="f")
    grid, orientation = read_grid(array, find_axes(array, "f"), "f")
    return grid, orientation, array


@pytest.mark.parametrize(
    ("longitude", "closes", "first"),
    [
        (np.arange(0.0, 360.0, 10.0), True, 0.0),
        (np.arange(-180.0, 180.0, 10.0), True, 0.0),
        (np.arange(5.0, 365.0, 10.0), True, 5.0),
        (np.arange(355.0, -5.0, -10.0), True, 5.0),
        (np.arange(-20.0, 30.0, 10.0), False, -20.0),
        (np.array([340.0, 350.0, 0.0, 10.0, 20.0]), False, -20.0),
        (np.array([150.0, 160.0, 170.0, -180.0, -170.0]), False, 150.0),
        (np.arange(0.0, 180.0, 10.0), False, 0.0),
    ],
)
@pytest.mark.parametrize("latitude", [np.arange(-20.0, 21.0, 10.0), np.arange(20.0, -21.0, -10.0)])
def test_rows_northwards_and_columns_eastwards(
    longitude: np.ndarray, closes: bool, first: float, latitude: np.ndarray
) -> None:
    grid, orientation, array = read(latitude, longitude)
    assert grid.closes_circle is closes and grid.kind == "latitude-longitude"
    assert grid.columns[0] == pytest.approx(first, abs=1e-3)
    np.testing.assert_array_equal(grid.rows, np.sort(latitude))
    np.testing.assert_allclose(np.diff(grid.columns), 10.0)
    turned = orientation.turn(array.values)
    expected = grid.rows[:, None] + 1000.0 * np.mod(np.round(grid.columns, 6), 360.0)
    np.testing.assert_allclose(turned, expected)
    np.testing.assert_array_equal(orientation.turn_back(turned), array.values)


def test_one_grid_in_two_orders_is_the_same() -> None:
    one = read(np.arange(-20.0, 21.0, 10.0), np.arange(0.0, 360.0, 10.0))[0]
    other = read(np.arange(20.0, -21.0, -10.0), np.arange(-180.0, 180.0, 10.0) + 1e-5)[0]
    assert one.difference(other) is None
    moved = read(np.arange(-20.0, 21.0, 10.0), np.arange(0.0, 360.0, 10.0) + 1.0)[0]
    assert "columns differ by up to 1" in (one.difference(moved) or "") and one.hash != moved.hash
    small = read(np.arange(-10.0, 11.0, 10.0), np.arange(0.0, 360.0, 10.0))[0]
    difference = one.difference(small) or ""
    assert "5 x 36" in difference and "3 x 36" in difference


def test_areas_of_a_curvilinear_grid_are_those_of_its_cells() -> None:
    latitude, longitude = np.arange(-60.0, 61.0, 5.0), np.arange(0.0, 60.0, 5.0)
    regular = read(latitude, longitude)[0].area_weights()
    lat2d, lon2d = np.meshgrid(latitude, longitude, indexing="ij")
    array = xr.DataArray(
        np.zeros(lat2d.shape),
        dims=("y", "x"),
        coords={
            "lat2d": (("y", "x"), lat2d, {"standard_name": "latitude"}),
            "lon2d": (("y", "x"), lon2d, {"standard_name": "longitude"}),
        },
        name="f",
    )
    grid, _ = read_grid(array, find_axes(array, "f"), "f")
    weights = grid.area_weights()
    assert grid.kind == "curvilinear" and not grid.closes_circle
    assert weights is not None and regular is not None
    # One-sided differences shift the area by half a row.
    np.testing.assert_allclose(weights, regular, rtol=0.09)
    np.testing.assert_allclose(regular[:, 0] / regular[12, 0], np.cos(np.deg2rad(latitude)), rtol=1e-12)


def test_a_grid_without_coordinates_has_no_areas() -> None:
    array = xr.DataArray(np.zeros((3, 4)), dims=("y", "x"), name="f")
    grid, _ = read_grid(array, find_axes(array, "f"), "f")
    assert grid.kind == "indexed" and grid.area_weights() is None and not grid.closes_circle


@pytest.mark.parametrize(
    ("latitude", "longitude", "message"),
    [
        (np.array([0.0, np.nan]), np.array([0.0, 1.0]), "1 values that are not finite"),
        (np.array([0.0, 95.0]), np.array([0.0, 1.0]), "the value 95, outside of 90 degrees"),
        (np.array([0.0, 0.0]), np.array([0.0, 1.0]), "lat of f has the value 0 twice"),
        (np.array([0.0, 1.0]), np.arange(0.0, 361.0, 10.0), "the longitude 0 twice, as in files with a cyclic column"),
    ],
)
def test_coordinates_that_make_no_grid_are_refused(latitude: np.ndarray, longitude: np.ndarray, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(latitude, longitude)


def rotated(latitude: float, longitude: float) -> xr.Dataset:
    """A field around a rotated pole, which the grid mapping gives as CF has it."""
    mapping = {"grid_mapping_name": "rotated_latitude_longitude"}
    mapping |= {"grid_north_pole_latitude": latitude, "grid_north_pole_longitude": longitude}
    return xr.Dataset(
        {"t": (("rlat", "rlon"), np.zeros((3, 4)), {"grid_mapping": "pole"}), "pole": ((), 0, mapping)},
        coords={
            "rlat": ("rlat", np.arange(3.0), {"standard_name": "grid_latitude", "units": "degrees"}),
            "rlon": ("rlon", np.arange(4.0), {"standard_name": "grid_longitude", "units": "degrees"}),
        },
    )


def test_grids_around_different_poles_are_different() -> None:
    ours = FieldSource(rotated(39.25, -162.0), ["t"]).grid
    assert ours.kind == "rotated" and ours.pole == (39.25, -162.0)
    same, other = FieldSource(rotated(39.25, 198.0), ["t"]).grid, FieldSource(rotated(42.5, 83.0), ["t"]).grid
    unknown = FieldSource(rotated(39.25, -162.0).drop_vars("pole"), ["t"]).grid
    assert ours.difference(same) is None and ours.difference(unknown) is None
    assert "their rotated poles are at 39.25, -162 and 42.5, 83" in str(ours.difference(other))
    assert ours.hash != other.hash
    with pytest.raises(DataError, match="their rotated poles are at"):
        Regridding(ours, other)
