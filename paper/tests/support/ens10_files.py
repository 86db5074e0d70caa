"""Writes tiny ensembles in ENS-10's layouts, NetCDF and GRIB, from one formula for each member."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import eccodes
import numpy as np
import xarray as xr

from smoe_paper.atmosphere.fields import Grid
from smoe_paper.ens10.source import LEAD, NUM_MEMBERS, PRESSURE_LEVEL_VARIABLES, SURFACE_VARIABLES, TASKS, LevelType

LEVELS = (500, 850)
"""Pressure levels of the files, in hPa."""

Members = Callable[[str, int | None, np.datetime64], np.ndarray]
"""Returns members `(10, H, W)` of a variable, such as `SSTK`, on a level in hPa or None, of a forecast by start."""

_FILES = {"pl": PRESSURE_LEVEL_VARIABLES, "sfc": SURFACE_VARIABLES}


def write_members(root: Path, level_type: LevelType, start: np.datetime64, grid: Grid, members: Members) -> Path:
    """Writes `ensemble/output.<pl or sfc>.<date>.nc`, with the names and dimensions that cfgrib shows of ENS-10."""
    arrays = {}
    for variable in _FILES[level_type]:
        levels = LEVELS if level_type == "pl" else (None,)
        fields = np.stack([members(variable.name, level, start) for level in levels], axis=1).astype(np.float32)
        dims = ("number", "isobaricInhPa", "latitude", "longitude")
        array = xr.DataArray(fields, dims=dims, attrs={"units": variable.physics.units})
        arrays[variable.grib_name] = array if level_type == "pl" else array.isel(isobaricInhPa=0)
    coordinates = {"number": np.arange(1, NUM_MEMBERS + 1), "latitude": list(grid.latitude),
                   "longitude": list(grid.longitude), "time": start.astype("datetime64[ns]"),
                   "valid_time": (start + LEAD).astype("datetime64[ns]")}  # fmt: skip
    dataset = xr.Dataset(arrays).assign_coords(coordinates)
    if level_type == "pl":
        dataset = dataset.assign_coords(isobaricInhPa=("isobaricInhPa", list(LEVELS), {"units": "hPa"}))
    path = root / "ensemble" / f"output.{level_type}.{str(start).replace('-', '')}.nc"
    return _write(dataset, path)


def write_truth(root: Path, task_name: str, starts: np.ndarray, grid: Grid, truth: np.ndarray) -> Path:
    """Writes `ERA5_z500.nc` and similar files: fields `(T, H, W)` at the dates for which the forecasts are valid."""
    task = next(task for task in TASKS.values() if task.name == task_name)
    coordinates = _coordinates(starts, grid)
    array = xr.DataArray(truth.astype(np.float32), dims=("time", "lat", "lon"), coords=coordinates)
    array.attrs["units"] = task.target_variable.physics.units
    if task.level is not None:
        array = array.expand_dims(plev=[100.0 * task.level], axis=1)
        array["plev"].attrs["units"] = "Pa"
    return _write(array.to_dataset(name=task.target), root / task.truth_file)


def _coordinates(starts: np.ndarray, grid: Grid) -> dict[str, object]:
    return {"time": (starts + LEAD).astype("datetime64[ns]"), "lat": list(grid.latitude), "lon": list(grid.longitude)}


def _write(dataset: xr.Dataset, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    encoding = {"time": {"units": "hours since 1990-01-01", "dtype": "int64"}} if "time" in dataset.coords else {}
    if "valid_time" in dataset.coords:
        encoding["valid_time"] = encoding["time"]
    temporary = path.with_name(f".{path.name}.tmp")
    dataset.to_netcdf(temporary, engine="netcdf4", encoding=encoding)
    temporary.replace(path)
    return path


GRID = Grid(tuple(90.0 - 22.5 * row for row in range(9)), tuple(22.5 * column for column in range(16)))
DAYS = ("01-01", "01-04", "01-08", "01-11", "01-15", "12-31")
STARTS = np.array([f"{year}-{day}" for year in (1998, 1999, 2000) for day in DAYS], "datetime64[D]")

_SCALES = {"Q": (0.004, 0.003), "W": (0.0, 0.3), "D": (0.0, 1e-5), "U": (5.0, 12.0), "V": (0.0, 8.0),
           "SSTK": (290.0, 10.0), "TCW": (20.0, 15.0),
           "TCWV": (19.0, 15.0), "CP": (1e-3, 8e-4), "MSL": (1.01e5, 1.5e3), "TCC": (0.5, 0.3),
           "U10M": (1.0, 6.0), "V10M": (0.0, 5.0), "T2M": (280.0, 15.0), "TP": (2e-3, 1e-3),
           "SKT": (281.0, 18.0)}  # fmt: skip
_LEVEL_SCALES = {("Z", 500): (54000.0, 2000.0), ("Z", 850): (14000.0, 900.0),
                 ("T", 500): (255.0, 12.0), ("T", 850): (275.0, 14.0)}  # fmt: skip


def truth_field(name: str, level: int | None, start: np.datetime64, grid: Grid = GRID) -> np.ndarray:
    """A wave that travels on a zonal mean, and takes another place on each date, `(H, W)`."""
    mean, amplitude = _LEVEL_SCALES.get((name, level or 0)) or _SCALES[name]
    day = int(start.astype("datetime64[D]").astype(np.int64))
    lat, lon = np.radians(np.array(grid.latitude))[:, None], np.radians(np.array(grid.longitude))[None]
    wave = np.cos(lat) * np.sin(2 * lon + 1.7 * day + sum(map(ord, name)) + (level or 0))
    return mean + amplitude * (0.5 * np.cos(2 * lat) + 0.45 * wave)


def member_fields(name: str, level: int | None, start: np.datetime64, grid: Grid = GRID, seed: int = 0) -> np.ndarray:
    """Ten members around the truth, with a bias, float32, `(10, H, W)`; no sea surface temperature over land."""
    amplitude = (_LEVEL_SCALES.get((name, level or 0)) or _SCALES[name])[1]
    key = [seed, sum(map(ord, name)), level or 0, int(start.astype("datetime64[D]").astype(np.int64))]
    noise = np.random.default_rng(key).normal(size=(10, *grid.shape))
    fields = truth_field(name, level, start, grid) + amplitude * (0.03 + 0.05 * noise)
    if name == "SSTK":
        fields[:, :, : grid.shape[1] // 4] = np.nan
    return fields.astype(np.float32)


def write_ens10(root: Path, task_name: str = "z500", *, starts: np.ndarray = STARTS, members: bool = True) -> Path:
    """The truth of a task and, if wanted, `ensemble/*.nc`."""
    task = next(task for task in TASKS.values() if task.name == task_name)
    truth = np.stack([truth_field(task.target, task.level, start) for start in starts])
    write_truth(root, task_name, starts, GRID, truth)
    if members:
        for start in starts:
            write_members(root, task.level_type, start, GRID, member_fields)
    return root


def write_grib(
    path: Path,
    level_type: LevelType,
    starts: np.ndarray,
    numbers: tuple[int, ...] = tuple(range(1, 11)),
    *,
    grid: Grid = GRID,
    leads: tuple[int, ...] = (48,),
    levels: tuple[int, ...] = (500,),
) -> Path:
    """A GRIB file as ENS-10 releases them: several starts, members, leads and, on pressure levels, levels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    variables = PRESSURE_LEVEL_VARIABLES if level_type == "pl" else SURFACE_VARIABLES
    rows, columns = grid.shape
    with path.open("wb") as file:
        for start in starts:
            for variable in variables:
                for level in levels if level_type == "pl" else (None,):
                    fields = member_fields(variable.name, level, start, grid)
                    for number in numbers:
                        for lead in leads:
                            message = eccodes.codes_grib_new_from_samples(f"regular_ll_{level_type}_grib1")
                            keys: dict[str, object] = {
                                "Ni": columns, "Nj": rows,
                                "latitudeOfFirstGridPointInDegrees": grid.latitude[0],
                                "latitudeOfLastGridPointInDegrees": grid.latitude[-1],
                                "longitudeOfFirstGridPointInDegrees": grid.longitude[0],
                                "longitudeOfLastGridPointInDegrees": grid.longitude[-1],
                                "iDirectionIncrementInDegrees": grid.longitude[1],
                                "jDirectionIncrementInDegrees": abs(grid.latitude[1] - grid.latitude[0]),
                                "setLocalDefinition": 1, "localDefinitionNumber": 1, "class": "od", "stream": "enfh",
                                "type": "pf", "expver": "0001", "number": number, "numberOfForecastsInEnsemble": 10,
                                "dataDate": int(str(start).replace("-", "")), "dataTime": 0, "step": lead,
                                "shortName": variable.grib_short_name, "bitsPerValue": 24,
                                "missingValue": 9999.0, "bitmapPresent": 1,
                            }  # fmt: skip
                            if level is not None:
                                keys["level"] = level
                            for key, value in keys.items():
                                eccodes.codes_set(message, key, value)
                            values = fields[number - 1].astype(np.float64) + (0.0 if lead == 48 else 1.0)
                            eccodes.codes_set_values(message, np.nan_to_num(values, nan=9999.0).ravel())
                            eccodes.codes_write(message, file)
                            eccodes.codes_release(message)
    return path


def write_index(path: Path, starts: np.ndarray) -> np.ndarray:
    """The extreme forecast index of some forecasts, as in the release."""
    values = np.random.default_rng(0).uniform(-0.7, 0.7, (len(starts), *GRID.shape)).astype(np.float32)
    coordinates = {"time": (starts + LEAD).astype("datetime64[ns]"), "latitude": list(GRID.latitude)}
    coordinates["longitude"] = list(GRID.longitude)
    array = xr.DataArray(values, coordinates, ("time", "latitude", "longitude"))
    array.to_dataset(name="efi").to_netcdf(path)
    return values
