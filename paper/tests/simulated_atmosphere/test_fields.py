"""Fields of the simulated atmosphere on latitudes, levels and the surface."""

from __future__ import annotations

import numpy as np
import pytest

from simulated_model import GAUSSIAN_LATITUDE, SIGMA
from simulation.frames import Frames
from simulation.latitudes import to_latitudes
from simulation.layout import LATITUDE, LONGITUDE
from simulation.perturbations import Perturbations
from simulation.precipitation import PrecipitationRecorder, totals
from simulation.pressure_levels import GAS_CONSTANT, GRAVITY, STANDARD_LAPSE_RATE, VAPOUR_FACTOR, to_pressure_levels
from simulation.surface import column_water_vapour, sea_level_pressure


def test_totals_of_every_step_in_metres():
    # Three half-hour steps: (1 + 2 + 3) kg m-2 s-1 * 1800 s / 1000 kg m-3 = 10.8 m; then twice that.
    rate = np.array([1.0, 2, 3, 2, 4, 6])[:, None, None]
    np.testing.assert_allclose(totals(rate, steps_per_total=3, step_seconds=1800)[:, 0, 0], [10.8, 21.6])


def test_the_recorder_has_an_entry_for_each_step():
    assert PrecipitationRecorder().prepare(0.0, 1800.0, 480)["step"].shape == (480,)


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


def test_sea_level_pressure_of_the_standard_atmosphere():
    # p = p0 (1 - lapse z / T0)^(g / (R lapse)), T = T0 - lapse z: going down again must give p0.
    height = np.array([[0.0, 500.0], [1500.0, 4000.0]])
    power = GRAVITY / (GAS_CONSTANT * STANDARD_LAPSE_RATE)
    ground = 288.15 - STANDARD_LAPSE_RATE * height
    surface = 101325.0 * (ground / 288.15) ** power
    lowest = ground * 0.95 ** (1 / power)
    np.testing.assert_allclose(sea_level_pressure(surface, lowest, 0.95, height), 101325.0, rtol=1e-6)


def test_a_cold_plateau_counts_as_half_way_to_255_kelvin():
    # 3500 m at 215 K: below the ground 235 K at the top, and 6.5 K more for each kilometre.
    height, power = np.array([[3500.0]]), GRAVITY / (GAS_CONSTANT * STANDARD_LAPSE_RATE)
    lowest = np.full((1, 1), 215.0 * 0.95 ** (1 / power))
    pressure = sea_level_pressure(np.full((1, 1), 65000.0), lowest, 0.95, height)
    assert pressure.item() == pytest.approx(65000.0 * ((235.0 + 0.0065 * 3500.0) / 235.0) ** power, rel=1e-6)
    # It goes over into the ordinary reduction without a step.
    near = [sea_level_pressure(np.full((1, 1), 65000.0), np.full((1, 1), t), 1.0, height) for t in (254.999, 255.001)]
    assert near[0].item() == pytest.approx(near[1].item(), rel=1e-4)


def test_vapour_of_a_moist_layer():
    humidity = np.zeros((1, 8, 1, 1))
    # The lowest layer lies between 0.9 and 1: 0.01 kg/kg of a tenth of the air of 1e5 Pa, 1e5 / 9.81 kg.
    humidity[0, -1] = 0.01
    water = column_water_vapour(humidity, np.full((1, 1, 1), 1e5), SIGMA)
    assert water.item() == pytest.approx(0.01 * 0.1 * 1e5 / 9.81)


def test_layers_that_do_not_reach_the_ground_are_refused():
    with pytest.raises(ValueError, match="do not reach the ground"):
        column_water_vapour(np.zeros((1, 7, 1, 1)), np.ones((1, 1, 1)), SIGMA[:-1])


def test_perturbations_are_differences_of_states_and_repeat():
    bank = [{"vorticity": np.full((2, 2), value, np.float32)} for value in (1.0, 2.0, 4.0, 8.0)]
    start = np.datetime64("2001-01-04")
    drawn = Perturbations(analysis=1.0, members=0.0, num_members=3).draw(start, bank)["vorticity"]
    assert drawn.shape == (3, 2, 2)
    # One error for all members: a difference of two of the four numbers, and never none.
    assert abs(float(drawn[0, 0, 0])) in (1.0, 2.0, 3.0, 4.0, 6.0, 7.0)
    assert np.unique(drawn).size == 1
    again = Perturbations(num_members=10).draw(start, bank)["vorticity"]
    np.testing.assert_array_equal(again, Perturbations(num_members=10).draw(start, bank)["vorticity"])
    other = Perturbations(num_members=10).draw(start + 3, bank)["vorticity"]
    assert not np.array_equal(again, other)
    assert np.unique(again[:, 0, 0]).size > 3


def test_one_state_is_too_few():
    with pytest.raises(ValueError, match="only 1 is kept before 2001-01-01"):
        Perturbations().draw(np.datetime64("2001-01-01"), [{"vorticity": np.zeros(1, np.float32)}])
