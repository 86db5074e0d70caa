import numpy as np
import pytest

from simulated_model import GAUSSIAN_LATITUDE
from simulation.latitudes import to_latitudes
from simulation.layout import LATITUDE, LONGITUDE


def test_linear_fields_stay_linear_between_the_gaussian_latitudes():
    field = np.broadcast_to(2.0 + 3.0 * GAUSSIAN_LATITUDE[:, None], (2, 32, 64))
    result = to_latitudes(field, GAUSSIAN_LATITUDE, LATITUDE)
    assert result.shape == (2, 32, 64)
    np.testing.assert_allclose(result[:, 1:-1], np.broadcast_to((2.0 + 3.0 * LATITUDE[1:-1])[:, None], (2, 30, 64)))


@pytest.mark.parametrize("row", [0, -1])
def test_the_last_latitude_lies_on_the_way_over_the_pole(row):
    field = np.cos(np.radians(LONGITUDE))[None, :] * np.ones((32, 1))
    result = to_latitudes(field, GAUSSIAN_LATITUDE, LATITUDE)
    # 87.1875 is a share w of the way from 85.7606 over the pole to 85.7606 on the other side, where cos has turned.
    w = (87.1875 - GAUSSIAN_LATITUDE[-1]) / (2 * (90 - GAUSSIAN_LATITUDE[-1]))
    np.testing.assert_allclose(result[row], (1 - 2 * w) * field[0], atol=1e-12)


def test_a_wind_across_the_pole_keeps_its_direction():
    # A uniform wind over a flat pole: seen along each meridian its northward part turns with longitude.
    northward = np.cos(np.radians(LONGITUDE))[None, :] * np.ones((32, 1))
    result = to_latitudes(northward, GAUSSIAN_LATITUDE, LATITUDE, is_wind=True)
    np.testing.assert_allclose(result[-1], northward[0], atol=1e-12)


def test_a_target_beyond_the_pole_is_refused():
    with pytest.raises(ValueError, match="90"):
        to_latitudes(np.zeros((32, 64)), GAUSSIAN_LATITUDE, np.array([91.0]))
