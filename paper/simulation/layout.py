"""WeatherBench's file layout at 5.625 degrees: one NetCDF-4 file for each variable and year, and one with constants."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xarray as xr

RESOLUTION = "5.625deg"
LATITUDE = -87.1875 + 5.625 * np.arange(32)
LONGITUDE = 5.625 * np.arange(64)
LEVELS = (50, 250, 500, 600, 700, 850, 925)
STEP_HOURS = 6
ORIGIN = "simulated by jcm (SPEEDY physics, T21), not ERA5"


@dataclass(frozen=True)
class Variable:
    """A variable of the layout: the name of its folder, its units and what it is."""

    folder: str
    units: str
    long_name: str
    has_levels: bool = False


VARIABLES = {
    "z": Variable("geopotential", "m**2 s**-2", "Geopotential", has_levels=True),
    "t": Variable("temperature", "K", "Temperature", has_levels=True),
    "u": Variable("u_component_of_wind", "m s**-1", "U component of wind", has_levels=True),
    "v": Variable("v_component_of_wind", "m s**-1", "V component of wind", has_levels=True),
    "q": Variable("specific_humidity", "kg kg**-1", "Specific humidity", has_levels=True),
    "t2m": Variable("2m_temperature", "K", "Near-surface air temperature of the model"),
    "tisr": Variable("toa_incident_solar_radiation", "J m**-2", "TOA incident solar radiation in one hour, daily mean"),
    "tp": Variable("6hr_precipitation", "m", "Precipitation of the six hours before"),
}


def year_times(year: int) -> np.ndarray:
    """Every output time of a calendar year, datetime64[h]."""
    start, end = np.datetime64(f"{year}-01-01T00", "h"), np.datetime64(f"{year + 1}-01-01T00", "h")
    return np.arange(start, end, np.timedelta64(STEP_HOURS, "h"))


def year_file(root: Path, name: str, year: int) -> Path:
    """Where the variable with this short name is kept."""
    folder = VARIABLES[name].folder
    return root / RESOLUTION / folder / f"{folder}_{year}_{RESOLUTION}.nc"


def constants_file(root: Path) -> Path:
    """Where the fields without time are kept."""
    return root / RESOLUTION / "constants" / f"constants_{RESOLUTION}.nc"


def has_year(root: Path, year: int) -> bool:
    """Whether every variable of the year is there; a file only gets its name when it is whole."""
    return all(year_file(root, name, year).exists() for name in VARIABLES)


def write_year(root: Path, year: int, values: dict[str, np.ndarray], attributes: dict[str, str]) -> None:
    """Writes the files of one year: `(T, L, 32, 64)` or `(T, 32, 64)` for each short name, `T` as in `year_times`."""
    times = year_times(year)
    for name, variable in VARIABLES.items():
        levels = (len(LEVELS),) if variable.has_levels else ()
        expected = (len(times), *levels, len(LATITUDE), len(LONGITUDE))
        if values[name].shape != expected:
            raise ValueError(f"{name} of {year} must have the shape {expected}, got {values[name].shape}")
        dims = ("time", "level", "lat", "lon") if variable.has_levels else ("time", "lat", "lon")
        coordinates = _coordinates() | {"time": ("time", times.astype("datetime64[ns]"))}
        if variable.has_levels:
            coordinates["level"] = ("level", np.array(LEVELS, dtype=np.int32), {"units": "millibars"})
        notes = {"units": variable.units, "long_name": variable.long_name}
        data = xr.Dataset({name: (dims, values[name].astype(np.float32), notes)}, coordinates, attributes)
        encoding = {"time": {"units": "hours since 1900-01-01", "dtype": "int32"}, name: {"_FillValue": None}}
        write_file(data, year_file(root, name, year), encoding)


def write_constants(root: Path, orography: np.ndarray, land: np.ndarray, attributes: dict[str, str]) -> None:
    """Writes orography in m and the share of land in [0, 1], both `(32, 64)`, with latitude and longitude as fields."""
    latitude, longitude = np.meshgrid(LATITUDE, LONGITUDE, indexing="ij")
    fields = {
        "orography": (orography, "m", "Height of the surface"),
        "lsm": (np.clip(land, 0.0, 1.0), "(0 - 1)", "Land-sea mask"),
        "lat2d": (latitude, "degrees_north", "Latitude"),
        "lon2d": (longitude, "degrees_east", "Longitude"),
    }
    variables = {
        name: (("lat", "lon"), values.astype(np.float32), {"units": units, "long_name": long_name})
        for name, (values, units, long_name) in fields.items()
    }
    encoding = {name: {"_FillValue": None} for name in fields}
    write_file(xr.Dataset(variables, _coordinates(), attributes), constants_file(root), encoding)


def _coordinates() -> dict[str, tuple]:
    return {
        "lat": ("lat", LATITUDE, {"units": "degrees_north"}),
        "lon": ("lon", LONGITUDE, {"units": "degrees_east"}),
    }


def write_file(data: xr.Dataset, path: Path, encoding: dict[str, dict]) -> None:
    """The file appears under its name when it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.part")
    data.to_netcdf(temporary, format="NETCDF4", engine="netcdf4", encoding=encoding)
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)
