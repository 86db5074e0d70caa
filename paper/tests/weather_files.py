"""Writes tiny weather archives of the true layouts, from one formula for each channel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import xarray as xr

from smoe_paper.atmosphere.fields import Grid
from smoe_paper.atmosphere.variables import HOURLY_PRECIPITATION, LEVELS, VARIABLES

GRID = Grid(tuple(-87.1875 + 5.625 * row for row in range(32)), tuple(5.625 * column for column in range(64)))
DEFAULT_VARIABLES = ("z", "t", "u", "v", "q", "tisr", "t2m", "tp")

# Mean and amplitude of each variable; those of z follow the level.
_SCALES = {
    "t": (255.0, 20.0),
    "u": (5.0, 15.0),
    "v": (0.0, 8.0),
    "q": (0.004, 0.003),
    "r": (50.0, 30.0),
    "vo": (0.0, 1e-4),
    "pv": (0.0, 1e-5),
    "tisr": (1.2e6, 1.2e6),
    "t2m": (280.0, 18.0),
    "tp": (1e-3, 8e-4),
    "u10": (1.0, 6.0),
    "v10": (0.0, 5.0),
    "tcc": (0.5, 0.4),
}
_HEIGHTS = {50: 20576.0, 100: 16180.0, 250: 10363.0, 500: 5574.0, 600: 4206.0, 700: 3012.0, 850: 1457.0, 925: 762.0}

UNITS = {
    "z": "m**2 s**-2", "t": "K", "u": "m s**-1", "v": "m s**-1", "q": "kg kg**-1", "tisr": "J m**-2", "t2m": "K",
    "tp": "m", "r": "%", "vo": "s**-1", "pv": "K m**2 kg**-1 s**-1", "u10": "m s**-1", "v10": "m s**-1",
    "tcc": "(0 - 1)",
}  # fmt: skip


def times_of_year(year: int, steps: int, step_hours: int = 6, start: str | None = None) -> np.ndarray:
    """`steps` times from the first hour of a year, or from `start`."""
    first = np.datetime64(start or f"{year}-01-01T00", "h")
    return first + np.arange(steps) * np.timedelta64(step_hours, "h")


def weather_field(channel: str, times: np.ndarray, grid: Grid) -> np.ndarray:
    """What the files hold for a channel, float32, `(T, H, W)`: a wave that travels on a zonal mean.

    `tp` is the 6-hour total; `hourly_precipitation` is what hourly files hold.
    """
    short_name, _, level = channel.partition("_")
    if short_name == "z":
        mean, amplitude = 9.80665 * _HEIGHTS.get(int(level), 5000.0), 1500.0
    else:
        mean, amplitude = _SCALES[short_name]
    phase = sum(map(ord, short_name)) + 0.1 * (int(level) if level else 0)
    hours = times.astype("datetime64[h]").astype(np.int64)[:, None, None].astype(np.float64)
    lat = np.radians(np.asarray(grid.latitude))[None, :, None]
    lon = np.radians(np.asarray(grid.longitude))[None, None, :]
    wave = np.cos(lat) * np.sin(2 * lon + phase + hours * (2 * np.pi / 37.0)) + 0.2 * np.cos(5 * lon + hours / 11.0)
    return (mean + amplitude * (0.4 * np.cos(2 * lat) + 0.45 * wave + 0.05 * np.sin(lat))).astype(np.float32)


def hourly_precipitation(times: np.ndarray, grid: Grid) -> np.ndarray:
    """What hourly files of `total_precipitation` hold: totals of one hour in m."""
    return weather_field("tp", times, grid) / np.float32(6)


def constant_field(name: str, grid: Grid) -> np.ndarray:
    """What the constants file holds, float32, `(H, W)`."""
    lat, lon = np.meshgrid(*(np.asarray(axis, np.float32) for axis in (grid.latitude, grid.longitude)), indexing="ij")
    if name in ("lat2d", "lon2d"):
        return {"lat2d": lat, "lon2d": lon}[name]
    land = (np.sin(np.radians(2 * lon)) * np.cos(np.radians(lat)) > 0).astype(np.float32)
    return {"lsm": land, "orography": land * (800 + 5 * lat).astype(np.float32)}[name].astype(np.float32)


def data_array(
    short_name: str, times: np.ndarray, grid: Grid, levels: Sequence[int] = LEVELS, hourly: bool = False
) -> xr.DataArray:
    """A variable as WeatherBench stores it: (time, level, lat, lon), with units."""
    coords: dict[str, object] = {"time": times.astype("datetime64[ns]")}
    if VARIABLES[short_name].has_levels:
        values = np.stack([weather_field(f"{short_name}_{level}", times, grid) for level in levels], axis=1)
        coords["level"] = ("level", np.asarray(levels, np.int32), {"units": "millibars"})
        dims = ("time", "level", "lat", "lon")
    else:
        values = hourly_precipitation(times, grid) if hourly else weather_field(short_name, times, grid)
        dims = ("time", "lat", "lon")
    coords |= {"lat": np.asarray(grid.latitude), "lon": np.asarray(grid.longitude)}
    return xr.DataArray(values, coords, dims, short_name, {"units": UNITS[short_name]})


def write_netcdf(dataset: xr.Dataset | xr.DataArray, path: Path) -> Path:
    """Writes a file and makes its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    dataset.to_netcdf(path, engine="netcdf4")
    return path


def write_weatherbench(
    root: Path,
    *,
    years: Sequence[int] = (1979, 1980),
    steps: int = 12,
    step_hours: int = 6,
    variables: Sequence[str] = DEFAULT_VARIABLES,
    levels: Sequence[int] = LEVELS,
    constants: bool = True,
    times: Mapping[int, np.ndarray] | None = None,
) -> Path:
    """Writes `root/5.625deg/...` as downloaded and returns that folder.

    Every year has its first `steps` times, unless `times` says which. Hourly archives hold `total_precipitation`,
    6-hourly ones `6hr_precipitation`.
    """
    folder = root / "5.625deg"
    for year in years:
        of_year = times_of_year(year, steps, step_hours) if times is None else times[year]
        for short_name in variables:
            hourly = short_name == "tp" and step_hours == 1
            name = HOURLY_PRECIPITATION.folder if hourly else VARIABLES[short_name].folder
            array = data_array(short_name, of_year, GRID, levels, hourly)
            write_netcdf(array.to_dataset(), folder / name / f"{name}_{year}_5.625deg.nc")
    if constants:
        names = ("lsm", "orography", "lat2d", "lon2d")
        fields = {name: (("lat", "lon"), constant_field(name, GRID)) for name in names}
        dataset = xr.Dataset(fields, {"lat": np.asarray(GRID.latitude), "lon": np.asarray(GRID.longitude)})
        write_netcdf(dataset, folder / "constants" / "constants_5.625deg.nc")
    return folder
