import numpy as np
import pytest

from simulated_model import SIGMA
from simulation.frames import Frames
from simulation.pressure_levels import GAS_CONSTANT, GRAVITY, STANDARD_LAPSE_RATE, VAPOUR_FACTOR, to_pressure_levels

LEVELS = (50, 250, 500, 600, 700, 850, 925)


def column(temperature, geopotential, *, humidity: float = 0.0, surface_pressure: float | list = 1.0e5):
    """Two columns at two times; the functions take ln(p / 1000 hPa)."""
    pressure = np.broadcast_to(np.asarray(surface_pressure, dtype=np.float64), (2, 1, 2))
    x = np.log(SIGMA)[None, :, None, None] + np.log(pressure / 1e5)[:, None]
    wind = 10.0 + 2.0 * x
    moist = np.full_like(x, humidity)
    return Frames(
        np.array(["2001-01-01T00", "2001-01-01T06"], "M8[h]"),
        geopotential(x), temperature(x), wind, -wind, moist, pressure, pressure, pressure, pressure,
    )  # fmt: skip


def linear_temperature(x):
    return 280.0 + 30.0 * x


def its_geopotential(x):
    return 1000.0 - GAS_CONSTANT * (280.0 * x + 15.0 * x**2)


def test_an_atmosphere_linear_in_log_pressure_is_exact_between_the_levels():
    frames = column(linear_temperature, its_geopotential, surface_pressure=[[[1.0e5, 1.04e5]], [[0.99e5, 1.02e5]]])
    result = to_pressure_levels(frames, SIGMA, LEVELS)
    for i, level in enumerate(LEVELS):
        x = np.log(level / 1000)
        np.testing.assert_allclose(result["t"][:, i], linear_temperature(x), rtol=1e-6)
        np.testing.assert_allclose(result["z"][:, i], its_geopotential(x), rtol=1e-6)
        np.testing.assert_allclose(result["u"][:, i], 10.0 + 2.0 * x, rtol=1e-6)
        np.testing.assert_allclose(result["v"][:, i], -10.0 - 2.0 * x, rtol=1e-6)
    assert result["z"].shape == (2, len(LEVELS), 1, 2)
    assert all(values.dtype == np.float32 for values in result.values())


def test_humid_air_is_lighter_between_the_levels_too():
    virtual = 1.0 + VAPOUR_FACTOR * 0.01
    frames = column(linear_temperature, lambda x: virtual * its_geopotential(x), humidity=0.01)
    result = to_pressure_levels(frames, SIGMA, (600,))
    np.testing.assert_allclose(result["z"], virtual * its_geopotential(np.log(0.6)), rtol=1e-6)


def test_the_standard_atmosphere_continues_below_the_ground():
    exponent = GAS_CONSTANT * STANDARD_LAPSE_RATE / GRAVITY

    def temperature(x):
        return 288.15 * np.exp(exponent * x)

    def geopotential(x):
        return GRAVITY * (288.15 - temperature(x)) / STANDARD_LAPSE_RATE

    # Ground at 650 hPa, the lowest level at 617.5 hPa: 700, 850 and 925 hPa lie below.
    frames = column(temperature, geopotential, surface_pressure=6.5e4)
    result = to_pressure_levels(frames, SIGMA, (700, 850, 925))
    for i, level in enumerate((700, 850, 925)):
        np.testing.assert_allclose(result["t"][:, i], temperature(np.log(level / 1000)), rtol=1e-6)
        np.testing.assert_allclose(result["z"][:, i], geopotential(np.log(level / 1000)), rtol=1e-6)
        np.testing.assert_allclose(result["u"][:, i], 10.0 + 2.0 * np.log(0.6175), rtol=1e-6)


def test_above_the_highest_level_the_air_is_isothermal():
    frames = column(lambda x: 0 * x + 210.0, lambda x: -GAS_CONSTANT * 210.0 * x)
    result = to_pressure_levels(frames, SIGMA, (10,))
    np.testing.assert_allclose(result["t"], 210.0, rtol=1e-6)
    np.testing.assert_allclose(result["z"], -GAS_CONSTANT * 210.0 * np.log(0.01), rtol=1e-6)


def test_a_level_of_the_model_is_given_back():
    frames = column(linear_temperature, lambda x: np.sin(x))
    exact = to_pressure_levels(frames, SIGMA, (510, 340, 200))
    np.testing.assert_allclose(exact["z"][0, :, 0, 0], np.sin(np.log([0.51, 0.34, 0.2])), atol=1e-6)


def test_levels_from_the_ground_up_are_refused():
    with pytest.raises(ValueError, match="from the top down"):
        to_pressure_levels(column(linear_temperature, its_geopotential), SIGMA[::-1], (500,))
