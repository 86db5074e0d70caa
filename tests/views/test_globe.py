from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from smoe.losses import latitude_weights
from smoe.views import coastlines, draw_globe, similarity_colours
from smoe.views._drawing import save_picture
from smoe.views._globe import project

LATITUDE = np.array([-60.0, 0.0, 60.0])
LONGITUDE = np.array([0.0, 90.0, 180.0, 270.0])
LAND = np.array([[0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]])


def draw(values: np.ndarray, latitude: np.ndarray = LATITUDE, longitude: np.ndarray = LONGITUDE) -> np.ndarray:
    """The values drawn at 60, 0 and -60 degrees north and -140, -20, 20 and 140 degrees east."""
    mesh = draw_globe(Figure().add_subplot(), latitude, longitude, values)
    drawn = np.asarray(mesh.get_array())
    corners = np.asarray(mesh.get_coordinates())
    centres = (corners[:-1, :-1] + corners[1:, 1:]) / 2
    found = np.empty((3, 4))
    for row, north in enumerate((60.0, 0.0, -60.0)):
        for column, east in enumerate((-140.0, -20.0, 20.0, 140.0)):
            x, y = project(np.array([east]), np.array([north]))
            found[row, column] = drawn.ravel()[np.hypot(*(centres - (x[0], y[0])).reshape(-1, 2).T).argmin()]
    return found


# Rows from south to north; columns from Greenwich eastwards.
VALUES = np.array([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0], [9.0, 10.0, 11.0, 12.0]])


def test_a_field_is_drawn_where_it_belongs() -> None:
    # The pixel at 180 degrees covers 135 to 225, the one at 0 covers -45 to 45, 90: 45 to 135, 270: -135 to -45.
    expected = np.array([[11.0, 9.0, 9.0, 11.0], [7.0, 5.0, 5.0, 7.0], [3.0, 1.0, 1.0, 3.0]])
    assert draw(VALUES).tolist() == expected.tolist()


@pytest.mark.parametrize("first", [-180.0, 0.0, 90.0])
def test_the_first_longitude_and_the_direction_do_not_matter(first: float) -> None:
    shift = int((first % 360) // 90)
    longitude = first + 90.0 * np.arange(4)
    assert draw(np.roll(VALUES, -shift, axis=1), longitude=longitude).tolist() == draw(VALUES).tolist()
    assert draw(VALUES[::-1], LATITUDE[::-1]).tolist() == draw(VALUES).tolist()


def test_areas_are_true() -> None:
    # A zone between two latitudes has the area 2 pi (sin north - sin south); it is drawn in quadrangles.
    longitude, latitude = np.linspace(-180, 180, 361), np.array([30.0, 31.0])
    x, y = project(longitude[None, :], latitude[:, None])
    width = (x[0, -1] - x[0, 0] + x[1, -1] - x[1, 0]) / 2
    drawn = width * (y[1, 0] - y[0, 0])
    assert drawn == pytest.approx(2 * np.pi * np.diff(np.sin(np.deg2rad(latitude)))[0], rel=1e-4)
    # The whole map is an ellipse of the sphere's area, 4 pi.
    assert np.pi * project(np.array(180.0), np.array(0.0))[0] * project(np.array(0.0), np.array(90.0))[1] == (
        pytest.approx(4 * np.pi)
    )


def test_fields_that_do_not_go_round_the_globe_are_refused() -> None:
    axes = Figure().add_subplot()
    with pytest.raises(ValueError, match=r"90 degrees apart to go round the globe in 4 columns, got 0, 10, ..., 30"):
        draw_globe(axes, LATITUDE, np.arange(4) * 10.0, VALUES)
    with pytest.raises(ValueError, match=r"shape \(3, 4\) do not fit 2 latitudes and 4 longitudes"):
        draw_globe(axes, LATITUDE[:2], LONGITUDE, VALUES)


def test_coastlines_are_of_this_planet() -> None:
    lines = coastlines()
    points = np.concatenate(lines)
    assert points.min(0).tolist() >= [-180, -90] and points.max(0).tolist() <= [180, 90]
    # No line crosses the map.
    assert max(np.abs(np.diff(line, axis=0)).max() for line in lines) < 20
    # Lisbon, Cape Town, Perth and Anchorage lie by the sea; the middle of the Pacific does not have a coast.
    for east, north in ((-9.1, 38.7), (18.4, -33.9), (115.8, -32.0), (-150.0, 61.2)):
        assert np.hypot(*(points - (east, north)).T).min() < 3.0
    assert np.hypot(*(points - (-130.0, 0.0)).T).min() > 15.0
    assert (Path(__file__).parents[2] / "src/smoe/views/coastlines.npz").stat().st_size < 100_000


def test_a_written_map_is_not_blank(tmp_path: Path) -> None:
    path = tmp_path / "map.png"
    figure = Figure()
    draw_globe(figure.add_subplot(), LATITUDE, LONGITUDE, VALUES)
    save_picture(figure, path)
    picture = imread(path)
    assert len(np.unique(picture.reshape(-1, picture.shape[2]), axis=0)) > 50


def test_pixels_with_the_same_experts_have_the_same_colour() -> None:
    # Two sorts of pixels, and one pixel that shares one expert with the first sort.
    chosen = np.stack([np.where(LAND, 0, 2), np.where(LAND, 1, 3)]).astype(int)
    chosen[:, 0, 0] = (0, 3)
    colours = similarity_colours(chosen, 5, latitude_weights(LATITUDE)[:, None])
    assert colours.shape == (3, 4, 3) and colours.min() >= 0 and colours.max() <= 1
    land, sea, mixed = colours[1, 0], colours[2, 3], colours[0, 0]
    assert np.allclose(colours[LAND == 1], land)
    sea_pixels = LAND == 0
    sea_pixels[0, 0] = False
    assert np.allclose(colours[sea_pixels], sea)
    assert np.abs(land - sea).max() > 0.3
    # Nearer to both than they are to each other.
    apart = np.linalg.norm(land - sea)
    assert np.linalg.norm(mixed - land) < apart and np.linalg.norm(mixed - sea) < apart


def test_routing_that_is_the_same_everywhere_is_grey() -> None:
    assert np.allclose(similarity_colours(np.zeros((1, 3, 4), dtype=int), 2), 0.5)
