import numpy as np

from simulation.precipitation import PrecipitationRecorder, totals


def test_totals_of_every_step_in_metres():
    # Three half-hour steps: (1 + 2 + 3) kg m-2 s-1 * 1800 s / 1000 kg m-3 = 10.8 m; then twice that.
    rate = np.array([1.0, 2, 3, 2, 4, 6])[:, None, None]
    np.testing.assert_allclose(totals(rate, steps_per_total=3, step_seconds=1800)[:, 0, 0], [10.8, 21.6])


def test_the_recorder_has_an_entry_for_each_step():
    assert PrecipitationRecorder().prepare(0.0, 1800.0, 480)["step"].shape == (480,)
