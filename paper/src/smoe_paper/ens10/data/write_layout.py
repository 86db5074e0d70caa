"""Writes ensemble forecasts in ENS-10's layout: preprocessed files, members of each date, and truth."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from smoe.gridded import import_xarray
from smoe_paper.atmosphere.grid import Grid
from smoe_paper.ens10.data.fields import LEAD, check_order
from smoe_paper.ens10.data.members import check_numbers, mean_and_spread
from smoe_paper.ens10.data.variables import (
    NUM_MEMBERS,
    PRESSURE_LEVEL_VARIABLES,
    SURFACE_VARIABLES,
    TASKS,
    EnsembleVariable,
    LevelType,
)
from smoe_paper.ens10.store import OFFSET

if TYPE_CHECKING:
    import xarray as xr

LEVELS = (500, 850)
"""Pressure levels of the preprocessed files, in hPa."""

Members = Callable[[str, int | None, np.datetime64], np.ndarray]
"""Returns members `(10, H, W)` of a variable, such as `SSTK`, on a level in hPa or None, of a forecast by start."""

_FILES = {"pl": PRESSURE_LEVEL_VARIABLES, "sfc": SURFACE_VARIABLES}


def write_members(root: Path, level_type: LevelType, start: np.datetime64, grid: Grid, members: Members) -> Path:
    """Writes `ensemble/output.<pl or sfc>.<date>.nc`, with the names and dimensions that cfgrib shows of ENS-10.

    Args:
        root: Folder of the data set.
        level_type: Kind of level, which selects the variables.
        start: Start date of the forecast.
        grid: Grid from north to south.
        members: Returns the fields.
    """
    xr = import_xarray()
    arrays = {}
    for variable in _FILES[level_type]:
        levels = LEVELS if level_type == "pl" else (None,)
        fields = np.stack([members(variable.name, level, start) for level in levels], axis=1).astype(np.float32)
        check_numbers(list(range(1, len(fields) + 1)), f"{variable.name} of {start}")
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


def write_statistics(
    root: Path, level_type: LevelType, starts: np.ndarray, grid: Grid, members: Members, *, normalised: bool = False
) -> list[Path]:
    """Writes `ENS10_<pl or sfc>_mean.nc` and `_std.nc`: population statistics of ten members, at the valid times.

    All dates are in memory, which suits small grids.

    Args:
        root: Folder of the data set.
        level_type: Kind of level, which selects the variables.
        starts: Start dates of the forecasts, datetime64[D], ascending.
        grid: Grid from north to south.
        members: Returns the fields.
        normalised: Also write `_normalized.nc` as in the release, with statistics of all dates.
    """
    check_order(starts, "starts")
    shape = (len(starts), len(LEVELS if level_type == "pl" else (None,)), *grid.shape)
    arrays: dict[str, dict[str, np.ndarray]] = {"mean": {}, "std": {}}
    for variable in _FILES[level_type]:
        mean, std = np.empty(shape, np.float32), np.empty(shape, np.float32)
        for row, start in enumerate(starts):
            for place, level in enumerate(LEVELS if level_type == "pl" else (None,)):
                fields = members(variable.name, level, start)
                mean[row, place], std[row, place] = mean_and_spread(fields, NUM_MEMBERS)
        arrays["mean"][variable.name], arrays["std"][variable.name] = mean, std
    paths = []
    for statistic, fields in arrays.items():
        stem = root / f"ENS10_{level_type}_{statistic}"
        paths.append(_write(_dated(level_type, starts, grid, fields), stem.with_suffix(".nc")))
        if normalised:
            scaled = {n: (x - x.mean(axis=0)) / (x.std(axis=0) + np.float32(OFFSET)) for n, x in fields.items()}
            paths.append(_write(_dated(level_type, starts, grid, scaled), Path(f"{stem}_normalized.nc")))
    return paths


def write_truth(root: Path, task_name: str, starts: np.ndarray, grid: Grid, truth: np.ndarray) -> Path:
    """Writes `ERA5_z500.nc` and similar files: fields `(T, H, W)` at the dates for which the forecasts are valid."""
    task = next(task for task in TASKS.values() if task.name == task_name)
    xr = import_xarray()
    coordinates = _coordinates(starts, grid)
    array = xr.DataArray(truth.astype(np.float32), dims=("time", "lat", "lon"), coords=coordinates)
    array.attrs["units"] = task.target_variable.physics.units
    if task.level is not None:
        array = array.expand_dims(plev=[100.0 * task.level], axis=1)
        array["plev"].attrs["units"] = "Pa"
    return _write(array.to_dataset(name=task.target), root / task.truth_file)


def _dated(level_type: LevelType, starts: np.ndarray, grid: Grid, fields: dict[str, np.ndarray]) -> xr.Dataset:
    xr = import_xarray()
    variables: dict[str, EnsembleVariable] = {variable.name: variable for variable in _FILES[level_type]}
    coordinates = _coordinates(starts, grid)
    dims = ("time", "plev", "lat", "lon")
    dataset = xr.Dataset(
        {
            name: xr.DataArray(x, dims=dims, attrs={"units": variables[name].physics.units})
            for name, x in fields.items()
        },
        attrs={"num_members": NUM_MEMBERS},
    )
    if level_type == "sfc":
        return dataset.isel(plev=0).assign_coords(coordinates)
    levels = ("plev", [100.0 * level for level in LEVELS], {"units": "Pa"})
    return dataset.assign_coords({**coordinates, "plev": levels})


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
