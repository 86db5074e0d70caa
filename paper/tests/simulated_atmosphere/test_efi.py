"""The extreme forecast index against a loop over points, years, days and quantiles."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from simulation import ens10_layout
from simulation.efi import climate_windows, extreme_forecast_index, write_index
from smoe_paper.atmosphere.fields import Grid
from smoe_paper.ens10.source import TASKS, open_efi

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
    np.testing.assert_allclose(extreme_forecast_index(climate.T, ensemble.T), expected, atol=1e-6)


def test_sign_and_bounds() -> None:
    climate = np.tile(np.arange(1000.0, dtype=np.float32), (3, 1))
    ensemble = np.array([[2000.0] * 10, [-2000.0] * 10, np.linspace(0, 999, 10)], np.float32)
    warm, cold, usual = extreme_forecast_index(climate.T, ensemble.T)
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


def test_the_library_reads_what_is_written(tmp_path: Path) -> None:
    rng, days = np.random.default_rng(0), [f"01-{day:02d}" for day in (1, 5, 9, 13, 17)]
    starts = np.array([f"{year}-{day}" for year in (2001, 2002) for day in days], "datetime64[D]")
    fields = {(kind, name): rng.normal(280, 5, (10, 10, *([2] if kind == "pl" else []), 32, 64))
              for kind, names in ens10_layout.VARIABLES.items() for name in names}  # fmt: skip
    for number, start in enumerate(starts):
        for kind in ens10_layout.VARIABLES:
            of_kind = {name: values[number] for (of, name), values in fields.items() if of == kind}
            ens10_layout.write_members(tmp_path, kind, start, of_kind, {})
    truth = {task: np.zeros((10, 32, 64)) for task in ens10_layout.TRUTH}
    ens10_layout.write_truth(tmp_path, list(starts), truth)
    write_index(tmp_path)
    file = open_efi(tmp_path, TASKS["t850"], Grid(tuple(ens10_layout.LATITUDE), tuple(ens10_layout.LONGITUDE)))
    assert file is not None and len(file.dates) == 5
    members = fields["pl", "t"][:, :, 1, 3, 7].astype(np.float32)
    assert file.read(starts[7] + ens10_layout.LEAD)[3, 7] == pytest.approx(
        loop_efi(members.ravel(), members[7]), abs=1e-6
    )
