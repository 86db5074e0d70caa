import numpy as np
import pytest

from simulated_model import SIGMA
from simulation.perturbations import Perturbations
from simulation.pressure_levels import GAS_CONSTANT, GRAVITY, STANDARD_LAPSE_RATE
from simulation.surface import column_water_vapour, sea_level_pressure


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
