"""ENS-10's file layout at 5.625 degrees: members of each date, and the truth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xarray as xr

from simulation import layout
from simulation.start_dates import LEAD_DAYS

LATITUDE = layout.LATITUDE[::-1].copy()
LONGITUDE = layout.LONGITUDE
LEVELS = (500, 850)
ORIGIN = "ensemble simulated by jcm (SPEEDY physics, T21), neither ENS-10 nor ERA5"
LEAD = np.timedelta64(LEAD_DAYS, "D")


@dataclass(frozen=True)
class Variable:
    """A variable: its name in the preprocessed files and its units."""

    name: str
    units: str


# By the names that cfgrib assigns, as in the members' files.
VARIABLES = {
    "pl": {
        "z": Variable("Z", "m2 s-2"),
        "t": Variable("T", "K"),
        "q": Variable("Q", "kg kg-1"),
        "w": Variable("W", "Pa s-1"),
        "d": Variable("D", "s-1"),
        "u": Variable("U", "m s-1"),
        "v": Variable("V", "m s-1"),
    },
    "sfc": {
        "sst": Variable("SSTK", "K"),
        "tcw": Variable("TCW", "kg m-2"),
        "tcwv": Variable("TCWV", "kg m-2"),
        "cp": Variable("CP", "m"),
        "msl": Variable("MSL", "Pa"),
        "tcc": Variable("TCC", "(0 - 1)"),
        "u10": Variable("U10M", "m s-1"),
        "v10": Variable("V10M", "m s-1"),
        "t2m": Variable("T2M", "K"),
        "tp": Variable("TP", "m"),
        "skt": Variable("SKT", "K"),
    },
}
TRUTH = {
    "z500": ("Z", 500, "ERA5_z500.nc"),
    "t850": ("T", 850, "ERA5_t850.nc"),
    "t2m": ("T2M", None, "ERA5_sfc_t2m.nc"),
}

# Files, name and level of each task's members, and a title.
TASKS = {
    "z500": ("pl", "z", 500, "Z500 [m2 s-2]"),
    "t850": ("pl", "t", 850, "T850 [K]"),
    "t2m": ("sfc", "t2m", None, "T2m [K]"),
}


def members_file(root: Path, kind: str, start: np.datetime64) -> Path:
    """Where the members of the forecast from a start are kept; `kind` is `pl` or `sfc`."""
    return root / "ensemble" / f"output.{kind}.{str(start.astype('datetime64[D]')).replace('-', '')}.nc"


def has_members(root: Path, start: np.datetime64) -> bool:
    """Whether the forecast is complete; a file only gets its name when it is whole."""
    return all(members_file(root, kind, start).exists() for kind in VARIABLES)


def write_members(
    root: Path, kind: str, start: np.datetime64, fields: dict[str, np.ndarray], attributes: Mapping[str, str | float]
) -> None:
    """Writes the members of one start: `(M, 2, 32, 64)` on levels or `(M, 32, 64)` for each of cfgrib's names."""
    dims = ("number", "isobaricInhPa", "latitude", "longitude")
    dims = dims if kind == "pl" else (dims[0], *dims[2:])
    coordinates = {
        "number": np.arange(1, len(next(iter(fields.values()))) + 1),
        "latitude": ("latitude", LATITUDE, {"units": "degrees_north"}),
        "longitude": ("longitude", LONGITUDE, {"units": "degrees_east"}),
        "time": start.astype("datetime64[ns]"),
        "valid_time": (start + LEAD).astype("datetime64[ns]"),
    }
    if kind == "pl":
        coordinates["isobaricInhPa"] = ("isobaricInhPa", np.array(LEVELS), {"units": "hPa"})
    variables = {
        name: (dims, fields[name].astype(np.float32), {"units": variable.units})
        for name, variable in VARIABLES[kind].items()
    }
    hours = {"units": "hours since 1990-01-01", "dtype": "int64"}
    packing = {name: {"_FillValue": np.float32(np.nan), "zlib": True, "complevel": 1} for name in variables}
    data = xr.Dataset(variables, coordinates, {"source": ORIGIN, **attributes})
    layout.write_file(data, members_file(root, kind, start), {"time": hours, "valid_time": hours, **packing})


def write_truth(root: Path, starts: Sequence[np.datetime64], truth: dict[str, np.ndarray]) -> None:
    """Writes `ERA5_z500.nc` and its kin, under the layout's names: the model's truth, `(T, 32, 64)` for each task."""
    for task, (name, level, file) in TRUTH.items():
        units = "m2 s-2" if name == "Z" else "K"
        fields = truth[task] if level is None else truth[task][:, None]
        write_dated(root / file, starts, name, fields, units, level)


def write_dated(
    path: Path,
    starts: Sequence[np.datetime64] | np.ndarray,
    name: str,
    fields: np.ndarray,
    units: str,
    level: int | None,
) -> None:
    """Writes fields at the dates for which the forecasts are valid."""
    times = (np.array(starts, "datetime64[D]") + LEAD).astype("datetime64[ns]")
    dims = ("time", "lat", "lon") if level is None else ("time", "plev", "lat", "lon")
    coordinates = {
        "time": ("time", times),
        "lat": ("lat", LATITUDE, {"units": "degrees_north"}),
        "lon": ("lon", LONGITUDE, {"units": "degrees_east"}),
    }
    if level is not None:
        coordinates["plev"] = ("plev", [100.0 * level], {"units": "Pa"})
    variables = {name: (dims, fields.astype(np.float32), {"units": units})}
    encoding = {"time": {"units": "hours since 1990-01-01", "dtype": "int64"}}
    layout.write_file(xr.Dataset(variables, coordinates, {"source": ORIGIN}), path, encoding)


def read_task(root: Path, task: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The members `(T, 10, H, W)`, float64, and the truth `(T, H, W)` of a task, and the times of the truth."""
    (kind, name, level, _), (target, _, file) = TASKS[task], TRUTH[task]
    with xr.open_dataset(root / file) as data:
        times, truth = data["time"].values, data[target].values
    fields = []
    for time in times.astype("datetime64[D]"):
        with xr.open_dataset(members_file(root, kind, time - LEAD)) as data:
            values = data[name] if level is None else data[name].sel(isobaricInhPa=level)
            fields.append(values.values)
    return np.stack(fields).astype(np.float64), truth.reshape(len(times), *truth.shape[-2:]), times
