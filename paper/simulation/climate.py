"""Does the simulated atmosphere look like one? Means, jets, land and sea, weather, drift."""

from __future__ import annotations

import numpy as np

from simulation import layout
from simulation.simulated_years import SimulatedYears

WINTER_MONTHS = (12, 1, 2)
SUMMER_MONTHS = (6, 7, 8)


def global_mean(values: np.ndarray) -> float:
    """Mean over time and sphere of `(..., 32, 64)`."""
    return float((values.mean(axis=-1, dtype=np.float64) * _area()).mean())


def jets(data: SimulatedYears, years: list[int]) -> list[tuple[str, str, float, float]]:
    """The strongest zonal mean wind at 250 hPa: season, hemisphere, m s-1, latitude."""
    wind, months = data.read("u", years, 250), _month(data.times(years))
    rows = []
    for season, chosen in (("Dec-Feb", WINTER_MONTHS), ("Jun-Aug", SUMMER_MONTHS)):
        mean = wind[np.isin(months, chosen)].mean(axis=(0, 2))
        for hemisphere, half in (("north", layout.LATITUDE > 0), ("south", layout.LATITUDE < 0)):
            strongest = int(np.argmax(np.where(half, mean, -np.inf)))
            rows.append((season, hemisphere, float(mean[strongest]), float(layout.LATITUDE[strongest])))
    return rows


def winter_land_sea_contrast(data: SimulatedYears, years: list[int]) -> tuple[float, float]:
    """Mean 2 m temperature of land and of sea at 30-60 N in December to February, K."""
    winter = np.isin(_month(data.times(years)), WINTER_MONTHS)
    temperature = data.read("t2m", years)[winter].mean(axis=0, dtype=np.float64)
    land = data.constant("lsm").astype(np.float64)
    belt = ((layout.LATITUDE > 30) & (layout.LATITUDE < 60))[:, None] * _area()[:, None]
    # Over low land only, so that mountains are not mistaken for winter.
    low = belt * (data.constant("orography") < 1000)
    return float(np.average(temperature, weights=low * land)), float(np.average(temperature, weights=low * (1 - land)))


def transient_height(data: SimulatedYears, years: list[int]) -> list[tuple[str, str, float]]:
    """Standard deviation of 500 hPa height about each season's mean of the year, at 30-60 degrees, m."""
    height, times = data.read("z", years, 500) / 9.80665, data.times(years)
    months, year = _month(times), times.astype("datetime64[Y]").astype(int)
    rows = []
    for season, chosen in (("Dec-Feb", WINTER_MONTHS), ("Jun-Aug", SUMMER_MONTHS)):
        variances = []
        for one in np.unique(year):
            part = height[(year == one) & np.isin(months, chosen)]
            variances.append(part.var(axis=0, dtype=np.float64))
        variance = np.mean(variances, axis=0).mean(axis=-1)
        for belt, inside in (("30-60 N", layout.LATITUDE > 0), ("30-60 S", layout.LATITUDE < 0)):
            inside = inside & (np.abs(layout.LATITUDE) > 30) & (np.abs(layout.LATITUDE) < 60)
            rows.append((season, belt, float(np.sqrt(np.average(variance[inside], weights=_area()[inside])))))
    return rows


def annual_means(data: SimulatedYears) -> list[tuple[int, float, float, float, float, float]]:
    """Year, Z500 (m2 s-2), T850 (K), T2m (K), precipitation (mm/day), fastest zonal mean wind at 250 hPa (m s-1)."""
    rows = []
    for year in data.years:
        one = [year]
        precipitation = global_mean(data.read("tp", one)) * 1000 * 24 / layout.STEP_HOURS
        fastest = float(data.read("u", one, 250).mean(axis=(0, 2)).max())
        z, t = global_mean(data.read("z", one, 500)), global_mean(data.read("t", one, 850))
        rows.append((year, z, t, global_mean(data.read("t2m", one)), precipitation, fastest))
    return rows


def _month(times: np.ndarray) -> np.ndarray:
    return times.astype("datetime64[M]").astype(int) % 12 + 1


def _area() -> np.ndarray:
    """Weights of the latitudes with mean 1."""
    weights = np.cos(np.radians(layout.LATITUDE))
    return weights / weights.mean()
