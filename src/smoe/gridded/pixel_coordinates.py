"""Latitudes and longitudes of pixels that a file keeps as variables, or repeats at each time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smoe.gridded.cf_axes import is_latitude_or_longitude

if TYPE_CHECKING:
    import xarray as xr


def with_pixel_coordinates(dataset: xr.Dataset) -> xr.Dataset:
    """A data set whose latitudes and longitudes are coordinates.

    Files may hold them as variables that no field refers to, along dimensions without coordinates, and repeat them at
    each time, as WRF does. Those of a grid that moves with time are left as they are.

    Args:
        dataset: Data set as it was opened; its fields are not read.
    """
    names = [
        str(name)
        for name, array in dataset.variables.items()
        if array.ndim in (2, 3) and array.dtype.kind == "f" and is_latitude_or_longitude(dataset[name])
    ]
    for name in names:
        array = dataset[name]
        if any(dimension in dataset.coords for dimension in array.dims[-2:]):
            continue
        if array.ndim == 2:
            dataset = dataset.set_coords(name)
        elif _is_steady(array):
            dataset = dataset.drop_vars(name).assign_coords({name: array.isel({array.dims[0]: 0}, drop=True)})
    return dataset


def _is_steady(array: xr.DataArray) -> bool:
    """Whether the first and the last field are the same."""
    ends = array.isel({array.dims[0]: [0, -1]}).values
    return bool(np.array_equal(ends[0], ends[1]))
