"""Reads arrays of files: those that dask holds by one graph, so that they are read side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from smoe.errors import DataError

if TYPE_CHECKING:
    import xarray as xr


def load_arrays(arrays: Mapping[str, xr.DataArray], where: str) -> dict[str, np.ndarray]:
    """Values of arrays by their names.

    Args:
        arrays: Arrays, lazy or in memory.
        where: Name of the data in errors.

    Raises:
        DataError: If a file cannot be read, with the name of the array, or an array holds no numbers.
    """
    lazy = {name: array for name, array in arrays.items() if array.chunks is not None}
    loaded: dict[str, Any] = {}
    if len(lazy) > 1:
        import dask

        try:
            loaded = dict(zip(lazy, dask.compute(*(array.data for array in lazy.values())), strict=True))
        except Exception:
            # Each codec has errors of its own. Read alone and in this process, the array and its error are known.
            loaded = {}
    for name, array in arrays.items():
        if name not in loaded:
            loaded[name] = _load_one(array, name, where)
        if loaded[name].dtype.kind not in "iufb":
            raise DataError(f"{name} of {where} holds {loaded[name].dtype} values, no numbers: leave it out")
    return loaded


def _load_one(array: xr.DataArray, name: str, where: str) -> np.ndarray:
    try:
        return _values(array)
    except Exception as error:
        # Each codec behind NetCDF and Zarr has errors of its own.
        raise DataError(
            f"{name} of {where} cannot be read, the file is damaged or incomplete "
            f"({type(error).__name__}: {' '.join(str(error).split())}); copy it again"
        ) from error


def _values(array: xr.DataArray) -> np.ndarray:
    if array.chunks is None:
        return np.asarray(array.values)
    try:
        return np.asarray(array.data.compute())
    except Exception:
        # What a worker raises has its traceback in the text.
        return np.asarray(array.data.compute(scheduler="synchronous"))
