from __future__ import annotations

import numpy as np
import pytest

from memory_source import CONSTANTS, MemorySource, Silent
from smoe.errors import DataError
from smoe_paper.weather.commands import Preparation
from smoe_paper.weather.prepare import prepare
from smoe_paper.weather.scores import NUM_WEEKS, Baselines, Truth, week_of_year
from smoe_paper.weather.store import WeatherStore

SOURCE = MemorySource(all_years=(2000, 2001, 2002))
CHANNELS = ("z_500", "tp")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> WeatherStore:
    path = tmp_path_factory.mktemp("baselines") / "store"
    return prepare(SOURCE, path, Preparation((2000, 2002), (2000, 2001), SOURCE.names, CONSTANTS), Silent())


def source_fields(years: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Times and physical fields `(T, C, H, W)` of the source, not of the store."""
    times = np.concatenate([SOURCE.times(year) for year in years])
    fields = np.stack([np.concatenate([SOURCE.read_year(name, year) for year in years]) for name in CHANNELS], axis=1)
    return times, fields.astype(np.float64)


def test_weeks() -> None:
    days = {"2001-01-01": 0, "2001-01-07T23": 0, "2001-01-08": 1, "2001-12-24": 51, "2001-12-31T18": 51}
    # 51 weeks are 357 days: the last week of a leap year has nine, from 23 December on.
    days |= {"2000-12-22T21": 50, "2000-12-23": 51, "2000-12-31": 51, "2000-02-29": 8, "1999-01-01": 0}
    times = np.array(list(days), dtype="datetime64[h]")
    assert week_of_year(times).tolist() == list(days.values())
    year = np.arange("2001-01-01", "2002-01-01", dtype="datetime64[D]")
    assert np.bincount(week_of_year(year)).tolist() == [7] * 51 + [8]


def test_truth_is_physical(store: WeatherStore) -> None:
    times, fields = source_fields((2000, 2001, 2002))
    wanted = times[[5, 0, 1400, 2935]]
    found = Truth(store, CHANNELS).read(wanted)
    for channel, tolerance in enumerate((0.01, 1e-8)):
        expected = fields[[5, 0, 1400, 2935], channel]
        np.testing.assert_allclose(found[:, channel], expected, rtol=1e-5, atol=tolerance)


def test_baselines_are_means_of_the_training_years(store: WeatherStore) -> None:
    times, fields = source_fields((2000, 2001))
    baselines = Baselines(store, CHANNELS, (2000, 2001))
    np.testing.assert_allclose(baselines.climatology, fields.mean(0), rtol=1e-5)
    for week in (0, 8, 51):
        expected = fields[week_of_year(times) == week].mean(0)
        np.testing.assert_allclose(baselines.weekly_climatology[week], expected, rtol=1e-5)
    init = np.array(["2002-01-02", "2002-01-05"], dtype="datetime64[h]")
    valid = init + np.timedelta64(72, "h")
    forecasts = {name: baselines.forecast(name, init, valid) for name in ("persistence", "climatology")}
    all_times, all_fields = source_fields((2002,))
    np.testing.assert_allclose(forecasts["persistence"], all_fields[np.isin(all_times, init)], rtol=1e-5, atol=1e-8)
    np.testing.assert_array_equal(forecasts["climatology"], np.stack([baselines.climatology] * 2))
    # 2002-01-05 and 2002-01-08 are of the weeks 0 and 1: it is the week of the valid time that counts.
    np.testing.assert_array_equal(
        baselines.forecast("weekly climatology", init, valid), baselines.weekly_climatology[[0, 1]]
    )


def test_weeks_without_a_time_are_not_numbers(store: WeatherStore) -> None:
    # The last year has ten days only.
    weekly = Baselines(store, CHANNELS, (2002, 2002)).weekly_climatology
    assert np.isfinite(weekly[:2]).all() and np.isnan(weekly[2:]).all() and len(weekly) == NUM_WEEKS


def test_what_is_not_there_is_refused(store: WeatherStore) -> None:
    with pytest.raises(DataError, match="no times in the years 1979 to 1980; it has 2000-2002"):
        Baselines(store, CHANNELS, (1979, 1980))
    with pytest.raises(DataError, match="no channel 'z_50'; did you mean 'z_500'"):
        Truth(store, ("z_50",))
    with pytest.raises(DataError, match="2010-01-01T00 is not among the times"):
        Truth(store, CHANNELS).read(np.array(["2010-01-01T00"], dtype="datetime64[h]"))
