"""Regridding between grids with rows and columns, as xarray does, and between others, as a loop over all pixels."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from smoe.errors import DataError
from smoe.gridded._grids import HorizontalGrid, Regridding


def curvilinear(rows: int, columns: int, angle: float = 0.3) -> HorizontalGrid:
    """A grid of about two degrees around 45 N, 10 E, turned by an angle, whose cells grow northwards."""
    i, j = np.meshgrid(np.arange(rows) - rows / 2, np.arange(columns) - columns / 2, indexing="ij")
    latitude = 45.0 + 2.0 * (np.cos(angle) * i - np.sin(angle) * j)
    longitude = 10.0 + 2.5 * (np.sin(angle) * i + np.cos(angle) * j) * (1.0 + 0.01 * i)
    return HorizontalGrid("curvilinear", (rows, columns), latitude, np.mod(longitude, 360.0), False)


def regular(rows: np.ndarray, columns: np.ndarray, *, closes: bool = False) -> HorizontalGrid:
    return HorizontalGrid("latitude-longitude", (len(rows), len(columns)), rows, columns, closes)


def chord(first: tuple[float, float], second: tuple[float, float]) -> float:
    """Length of the straight line between two places, by the law of cosines."""
    (phi, lam), (psi, mu) = np.deg2rad(first), np.deg2rad(second)
    cosine = np.sin(phi) * np.sin(psi) + np.cos(phi) * np.cos(psi) * np.cos(lam - mu)
    return float(np.sqrt(max(2.0 - 2.0 * cosine, 0.0)))


def loop_definition(source: HorizontalGrid, target: HorizontalGrid, field: np.ndarray) -> np.ndarray:
    from_latitude, from_longitude = (each.ravel() for each in source.pixel_coordinates())
    to_latitude, to_longitude = (each.ravel() for each in target.pixel_coordinates())
    output = np.full(len(to_latitude), np.nan)
    for number, place in enumerate(zip(to_latitude, to_longitude, strict=True)):
        distances = [chord(place, other) for other in zip(from_latitude, from_longitude, strict=True)]
        nearest = sorted(range(len(distances)), key=lambda each: distances[each])[:4]
        if np.isnan(field.ravel()[nearest[0]]):
            continue
        there = [each for each in nearest if not np.isnan(field.ravel()[each])]
        weights = [distances[each] ** -2 for each in there]
        output[number] = np.dot(weights, field.ravel()[there]) / sum(weights)
    return output.reshape(target.shape)


@pytest.mark.parametrize("has_gaps", [False, True])
def test_from_a_curvilinear_grid_as_the_loop_does(has_gaps: bool) -> None:
    source, target = curvilinear(9, 11), regular(np.arange(41.0, 49.0, 1.3), np.arange(5.0, 15.0, 1.7))
    fields = np.random.default_rng(0).normal(size=(2, 3, *source.shape)).astype(np.float32)
    if has_gaps:
        fields[:, 1, 3:6, 4:8] = np.nan
    actual = Regridding(source, target)(fields)
    assert actual.dtype == np.float32 and actual.shape == (2, 3, *target.shape)
    for sample in range(2):
        for channel in range(3):
            expected = loop_definition(source, target, fields[sample, channel])
            np.testing.assert_allclose(actual[sample, channel], expected, rtol=1e-4, atol=1e-5)
    assert np.isnan(actual).any() == has_gaps


def test_pixels_that_coincide_keep_their_values() -> None:
    grid = curvilinear(5, 7)
    field = np.random.default_rng(1).normal(size=grid.shape).astype(np.float32)
    np.testing.assert_array_equal(Regridding(grid, grid)(field), field)


def test_across_the_date_line_and_the_pole() -> None:
    latitude, longitude = np.meshgrid(np.arange(60.0, 90.0, 3.0), np.arange(0.0, 360.0, 12.0), indexing="ij")
    source = HorizontalGrid("curvilinear", latitude.shape, latitude, longitude, True)
    target = regular(np.array([70.0, 89.0]), np.array([-0.5, 0.5]))
    # The sine of the longitude is odd: pixels on both sides of the meridian must count.
    values = Regridding(source, target)(np.sin(np.deg2rad(longitude)))
    np.testing.assert_allclose(values[0, 0], -values[0, 1], atol=1e-6)


def test_what_cannot_be_regridded_is_refused() -> None:
    source = curvilinear(9, 11)
    with pytest.raises(DataError, match=r"its pixel at latitude 60, longitude 10 is \d+ km from the nearest pixel"):
        Regridding(source, regular(np.array([45.0, 60.0]), np.array([9.0, 10.0])))
    projected = HorizontalGrid("projected", (2, 2), np.arange(2.0), np.arange(2.0), False)
    with pytest.raises(DataError, match=r"2 x 2 projected.* has no latitude and longitude of each pixel"):
        Regridding(source, projected)


def test_between_regions_as_xarray_does() -> None:
    source = regular(np.arange(30.0, 61.0, 2.0), np.arange(-10.0, 31.0, 2.5))
    target = regular(np.arange(33.0, 55.0, 1.3), np.arange(-8.0, 20.0, 1.7))
    fields = np.random.default_rng(0).normal(size=(2, *source.shape)).astype(np.float32)
    array = xr.DataArray(fields, dims=("n", "lat", "lon"), coords={"lat": source.rows, "lon": source.columns})
    expected = array.interp(lat=target.rows, lon=target.columns)
    np.testing.assert_allclose(Regridding(source, target)(fields), expected, atol=1e-6)


def test_across_the_seam_of_a_globe() -> None:
    source = regular(np.arange(-85.0, 86.0, 5.0), np.arange(0.0, 360.0, 5.0), closes=True)
    target = regular(np.arange(-10.0, 11.0, 4.0), np.arange(-7.0, 8.0, 2.0))
    fields = np.cos(np.deg2rad(source.columns)) * np.ones((source.shape[0], 1))
    expected = [np.interp(x, [-10, -5, 0, 5, 10], np.cos(np.deg2rad([-10, -5, 0, 5, 10]))) for x in target.columns]
    np.testing.assert_allclose(Regridding(source, target)(fields), np.broadcast_to(expected, target.shape), atol=1e-6)


def test_a_target_outside_is_refused() -> None:
    source = regular(np.arange(30.0, 61.0, 2.0), np.arange(0.0, 31.0, 2.5))
    near = regular(np.arange(29.5, 40.0, 1.0), np.arange(-1.0, 20.0, 1.7))
    assert Regridding(source, near)(np.ones(source.shape)).shape == near.shape
    for far in (regular(np.arange(20.0, 40.0, 1.0), source.columns), regular(source.rows, np.arange(-5.0, 20.0, 1.7))):
        with pytest.raises(DataError, match="is not inside of"):
            Regridding(source, far)


def test_fields_from_means_of_blocks() -> None:
    # ERA5 around the UK: 33 rows in blocks of 4 leave one over, which lies 0.625 steps beyond the last centre.
    target = regular(50.0 + 0.25 * np.arange(33), -10.0 + 0.25 * np.arange(49))
    rows, columns = (axis[: len(axis) // 4 * 4].reshape(-1, 4).mean(axis=1) for axis in (target.rows, target.columns))
    regridding = Regridding(regular(rows, columns), target)
    assert regridding.beyond == pytest.approx(0.625)
    values = regridding(np.broadcast_to(rows[:, None], (8, 12)))
    np.testing.assert_allclose(values[:, 5], np.clip(target.rows, rows[0], rows[-1]), atol=1e-5)
    # A neighbour without weight does not count, even if it is missing.
    field = np.ones((8, 12), np.float32)
    field[3, 4] = np.nan
    own = Regridding(regular(rows, columns), regular(rows, columns))(field)
    assert own[3, 3] == own[2, 4] == 1.0 and np.isnan(own).sum() == 1
