"""How hard the simulated atmosphere is to predict: persistence and climatologies, as WeatherBench scores them."""

from __future__ import annotations

import numpy as np

from simulation import layout


def rmse(error: np.ndarray) -> float:
    """Root of the mean over time and space of the squared error weighted by the cosine of latitude, `(T, 32, 64)`."""
    weights = np.cos(np.radians(layout.LATITUDE))
    by_latitude = np.mean(np.square(error), axis=(0, 2), dtype=np.float64)
    return float(np.sqrt(np.average(by_latitude, weights=weights)))


def persistence_rmse(truth: np.ndarray, lead_hours: int) -> float:
    """The present as forecast; `truth` is regular in time, and its first `lead_hours` only start forecasts."""
    steps, remainder = divmod(lead_hours, layout.STEP_HOURS)
    if remainder or not 0 < steps < len(truth):
        raise ValueError(f"a lead of {lead_hours} h does not fit {len(truth)} fields every {layout.STEP_HOURS} h")
    return rmse(truth[:-steps] - truth[steps:])


def climatology_rmse(truth: np.ndarray, earlier: np.ndarray) -> float:
    """The mean of earlier years as forecast."""
    return rmse(truth - earlier.mean(axis=0, dtype=np.float64).astype(np.float32))


def weekly_climatology_rmse(
    truth: np.ndarray, truth_times: np.ndarray, earlier: np.ndarray, earlier_times: np.ndarray
) -> float:
    """The mean of the same week in earlier years as forecast; see `week_of_year`."""
    weeks = week_of_year(earlier_times)
    means = np.stack([earlier[weeks == week].mean(axis=0, dtype=np.float64) for week in range(52)])
    return rmse(truth - means[week_of_year(truth_times)].astype(np.float32))


def week_of_year(times: np.ndarray) -> np.ndarray:
    """0 to 51, seven days each from the first of January; the last week has eight or nine days."""
    day = (times.astype("datetime64[D]") - times.astype("datetime64[Y]").astype("datetime64[D]")).astype(int)
    return np.minimum(day // 7, 51)
