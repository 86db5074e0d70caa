"""Small data sets for tests of gridded data."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr


def times(count: int, start: str = "2001-01-01", step: str = "D") -> np.ndarray:
    return (np.datetime64(start) + np.arange(count) * np.timedelta64(1, step)).astype("datetime64[ns]")


def cosines(latitude: xr.DataArray) -> xr.DataArray:
    """Weights of the rows of a regular grid."""
    return xr.DataArray(np.cos(np.deg2rad(latitude.values)), dims=latitude.dims, coords=latitude.coords)


def regional(
    count: int = 6, rows: int = 3, columns: int = 5, *, name: str = "t2m", units: str = "K", seed: int = 0, **attrs: Any
) -> xr.Dataset:
    """Daily fields on a small regular grid, rows northwards and columns eastwards."""
    values = np.random.default_rng(seed).normal(280.0, 5.0, (count, rows, columns)).astype(np.float32)
    return xr.Dataset(
        {name: (("time", "lat", "lon"), values, {"units": units, **attrs})},
        coords={
            "time": times(count),
            "lat": ("lat", 40.0 + np.arange(rows), {"units": "degrees_north", "standard_name": "latitude"}),
            "lon": ("lon", 5.0 + np.arange(columns), {"units": "degrees_east", "standard_name": "longitude"}),
        },
        attrs={"title": "small"},
    )
