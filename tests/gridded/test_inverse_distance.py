"""Regridding between grids without common rows and columns, against loops over all pixels."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial import KDTree

from smoe.errors import DataError
from smoe.gridded._grids import HorizontalGrid
from smoe.gridded._regrid import (
    InverseDistance,
    Regridding,
    make_regridding,
    nearest_points,
    on_sphere,
    pixel_coordinates,
)


def curvilinear(rows: int, columns: int, angle: float = 0.3) -> HorizontalGrid:
    """A grid of about two degrees around 45 N, 10 E, turned by an angle, whose cells grow northwards."""
    i, j = np.meshgrid(np.arange(rows) - rows / 2, np.arange(columns) - columns / 2, indexing="ij")
    latitude = 45.0 + 2.0 * (np.cos(angle) * i - np.sin(angle) * j)
    longitude = 10.0 + 2.5 * (np.sin(angle) * i + np.cos(angle) * j) * (1.0 + 0.01 * i)
    return HorizontalGrid("curvilinear", (rows, columns), latitude, np.mod(longitude, 360.0), False)


def regular(rows: np.ndarray, columns: np.ndarray) -> HorizontalGrid:
    return HorizontalGrid("latitude-longitude", (len(rows), len(columns)), rows, columns, False)


def chord(first: tuple[float, float], second: tuple[float, float]) -> float:
    """Length of the straight line between two places, by the law of cosines."""
    (phi, lam), (psi, mu) = np.deg2rad(first), np.deg2rad(second)
    cosine = np.sin(phi) * np.sin(psi) + np.cos(phi) * np.cos(psi) * np.cos(lam - mu)
    return float(np.sqrt(max(2.0 - 2.0 * cosine, 0.0)))


def loop_definition(source: HorizontalGrid, target: HorizontalGrid, field: np.ndarray) -> np.ndarray:
    from_latitude, from_longitude = (each.ravel() for each in pixel_coordinates(source))
    to_latitude, to_longitude = (each.ravel() for each in pixel_coordinates(target))
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
    actual = make_regridding(source, target)(fields)
    assert actual.dtype == np.float32 and actual.shape == (2, 3, *target.shape)
    for sample in range(2):
        for channel in range(3):
            expected = loop_definition(source, target, fields[sample, channel])
            np.testing.assert_allclose(actual[sample, channel], expected, rtol=1e-4, atol=1e-5)
    assert np.isnan(actual).any() == has_gaps


def test_pixels_that_coincide_keep_their_values() -> None:
    grid = curvilinear(5, 7)
    field = np.random.default_rng(1).normal(size=grid.shape).astype(np.float32)
    np.testing.assert_array_equal(InverseDistance(grid, grid)(field), field)


def test_across_the_date_line_and_the_pole() -> None:
    latitude, longitude = np.meshgrid(np.arange(60.0, 90.0, 3.0), np.arange(0.0, 360.0, 12.0), indexing="ij")
    source = HorizontalGrid("curvilinear", latitude.shape, latitude, longitude, True)
    target = regular(np.array([70.0, 89.0]), np.array([-0.5, 0.5]))
    # The sine of the longitude is odd: pixels on both sides of the meridian must count.
    values = InverseDistance(source, target)(np.sin(np.deg2rad(longitude)))
    np.testing.assert_allclose(values[0, 0], -values[0, 1], atol=1e-6)


@pytest.mark.parametrize("count", [1, 4])
def test_nearest_points_as_a_tree_finds_them(count: int) -> None:
    generator = np.random.default_rng(2)
    points, wanted = (generator.normal(size=(size, 3)) for size in (700, 600))
    points[:300] += [4.0, 0.0, 2.0]
    points, wanted = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (points, wanted))
    numbers, distances = nearest_points(points, wanted, count)
    expected, tree_numbers = KDTree(points).query(wanted, k=count)
    np.testing.assert_allclose(distances, np.reshape(expected, (-1, count)), atol=1e-7)
    np.testing.assert_array_equal(numbers, np.reshape(tree_numbers, (-1, count)))


def test_as_many_points_as_there_are() -> None:
    points = on_sphere(np.array([0.0, 10.0]), np.array([0.0, 0.0]))
    numbers, distances = nearest_points(points, points, 2)
    assert numbers.tolist() == [[0, 1], [1, 0]]
    np.testing.assert_allclose(distances, [[0.0, 2.0 * np.sin(np.deg2rad(5.0))]] * 2, atol=1e-7)


def test_what_cannot_be_regridded_is_refused() -> None:
    source = curvilinear(9, 11)
    with pytest.raises(DataError, match=r"its pixel at latitude 60, longitude 10 is \d+ km from the nearest pixel"):
        InverseDistance(source, regular(np.array([45.0, 60.0]), np.array([9.0, 10.0])))
    projected = HorizontalGrid("projected", (2, 2), np.arange(2.0), np.arange(2.0), False)
    with pytest.raises(DataError, match=r"2 x 2 projected.* has no latitude and longitude of each pixel"):
        make_regridding(source, projected)
    rows = np.arange(40.0, 50.0)
    assert isinstance(make_regridding(regular(rows, rows), regular(rows[1:-1] + 0.5, rows[1:-1])), Regridding)
