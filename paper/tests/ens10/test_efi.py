"""The extreme forecast index against a loop over points, years, days and quantiles."""

from __future__ import annotations

import numpy as np
import pytest

from smoe_paper.ens10.prepare import climate_windows, compute_part, extreme_forecast_index, parts_of

DAYS = [f"{month:02d}-{day:02d}" for month in (1, 2) for day in (1, 5, 9, 13, 17, 21)]
YEARS = range(1998, 2019)
STARTS = np.array([f"{year}-{day}" for year in YEARS for day in DAYS], "datetime64[D]")


def loop_efi(climate: np.ndarray, ensemble: np.ndarray) -> float:
    """One point, as ENS-10 defines it: 21 quantiles of each, sum over the 19 inner ones."""
    p = np.linspace(0, 1, 21)
    of_climate = np.quantile(climate.astype(np.float64), p).astype(np.float32)
    of_ensemble = np.quantile(ensemble.astype(np.float64), p).astype(np.float32)
    total = 0.0
    for index in range(1, 20):
        place = np.searchsorted(of_ensemble[:-1], of_climate[index])
        total += (p[index] - p[place]) / np.sqrt(p[index] * (1 - p[index])) * 0.05
    return 2 / np.pi * total


@pytest.mark.parametrize(("num_climate", "num_members"), [(1710, 10), (37, 5), (20, 1)])
def test_points_equal_the_loop(num_climate: int, num_members: int) -> None:
    rng = np.random.default_rng(0)
    climate = rng.normal(280.0, 5.0, (12, num_climate)).astype(np.float32)
    ensemble = (rng.normal(280.0, 2.0, (12, num_members)) + np.linspace(-20, 20, 12)[:, None]).astype(np.float32)
    # Values that climate and ensemble share.
    climate[3, :num_members] = ensemble[3]
    expected = [loop_efi(climate[point], ensemble[point]) for point in range(12)]
    np.testing.assert_allclose(extreme_forecast_index(climate.copy(), ensemble), expected, atol=1e-6)


def test_sign_and_bounds() -> None:
    climate = np.tile(np.arange(1000.0, dtype=np.float32), (3, 1))
    ensemble = np.array([[2000.0] * 10, [-2000.0] * 10, np.linspace(0, 999, 10)], np.float32)
    warm, cold, usual = extreme_forecast_index(climate, ensemble)
    # All of F(p) is 0: 2 / pi * sum of sqrt(p / (1 - p)) * 0.05, which is 1 for a fine sum and 0.791 here.
    p = np.linspace(0, 1, 21)[1:-1]
    assert warm == pytest.approx(2 / np.pi * np.sum(np.sqrt(p / (1 - p))) * 0.05)
    assert cold == pytest.approx(-warm, abs=1e-6) and warm == pytest.approx(0.7914, abs=1e-4) and abs(usual) < 0.1


def test_the_climate_is_of_nineteen_years_and_nine_days() -> None:
    windows = climate_windows(STARTS, 2018)
    assert len(windows) == len(DAYS)
    for index, window in windows.items():
        day = DAYS.index(str(STARTS[index])[5:])
        near = DAYS[max(0, day - 4) : day + 5]
        expected = [place for place, start in enumerate(STARTS) if str(start)[5:] in near and str(start) >= "2000"]
        np.testing.assert_array_equal(window, expected)
    # The first day of a year has itself and four later ones.
    assert len(windows[20 * 12]) == 19 * 5 and len(windows[20 * 12 + 5]) == 19 * 9


def test_few_days_and_forecasts_for_the_next_year_have_none() -> None:
    assert climate_windows(STARTS[np.isin(np.arange(len(STARTS)) % 12, (0, 1, 2, 3))], 2018) == {}
    late = np.array([f"{year}-12-{day}" for year in (1998, 1999) for day in (10, 14, 18, 22, 26, 31)], "datetime64[D]")
    assert sorted(climate_windows(late, 1999)) == [6, 7, 8, 9, 10]


def test_parts_of_the_grid_equal_the_loop_whatever_their_size() -> None:
    rng = np.random.default_rng(2)
    members = rng.normal(280, 5, (len(STARTS), 10, 5, 3)).astype(np.float32)
    for bytes_per_part in (1, 2 * 252 * 10 * 3 * 4, 10**9):
        efi = np.full((len(STARTS), 5, 3), np.nan, np.float32)
        covered = np.zeros((2, 5), int)
        for year in (2017, 2018):
            windows = climate_windows(STARTS, year)
            for part in parts_of(windows, members.shape, bytes_per_part):
                for row, index in compute_part(windows, part, members).items():
                    efi[row, part] = index
                covered[year - 2017, part] += 1
        assert (covered == 1).all()
        assert np.isnan(efi[: 19 * 12]).all() and not np.isnan(efi[19 * 12 :]).any()
        for row in (19 * 12, 20 * 12 + 3, 20 * 12 + 11):
            year, day = 1998 + row // 12, row % 12
            years = range(max(1998, year - 18), year + 1)
            rows = [12 * (y - 1998) + d for y in years for d in range(max(0, day - 4), min(12, day + 5))]
            expected = [
                [loop_efi(members[rows, :, r, c].ravel(), members[row, :, r, c]) for c in range(3)] for r in range(5)
            ]
            np.testing.assert_allclose(efi[row], expected, atol=1e-6)
