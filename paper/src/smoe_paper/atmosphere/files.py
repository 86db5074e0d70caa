"""Variables of NetCDF and Zarr files: found by their names, and read field by field."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from smoe._integrity import check_zarr_array, check_zarr_coordinates
from smoe.errors import DataError
from smoe.gridded import damage_as_data_error, import_xarray
from smoe_paper.atmosphere.axes import Grid, Orientation, find_levels, find_orientation

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["FileVariable", "OpenFiles", "check_zarr_array", "find_name", "find_variable", "open_zarr"]


def open_zarr(path: Path) -> xr.Dataset:
    """Opens a Zarr store of version 2 or 3 after checking its coordinates."""
    import zarr

    check_zarr_coordinates(path)
    # A request for consolidated metadata that do not exist would warn.
    is_consolidated = zarr.open_group(path, mode="r").metadata.consolidated_metadata is not None
    return import_xarray().open_dataset(
        path, engine="zarr", chunks=None, cache=False, consolidated=is_consolidated, decode_timedelta=False
    )


class OpenFiles:
    """Files that stay open as data sets; xarray itself closes those that were not used for long."""

    def __init__(self, open_file: Callable[[Path], xr.Dataset]) -> None:
        self._open_file = open_file
        self._open: dict[Path, xr.Dataset] = {}

    def get(self, path: Path) -> xr.Dataset:
        if path not in self._open:
            with damage_as_data_error(path):
                self._open[path] = self._open_file(path)
        return self._open[path]

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()


@dataclass(frozen=True)
class FileVariable:
    """Place of a variable in a file."""

    path: Path
    name: str
    orientation: Orientation
    level_axis: str | None = None
    levels: tuple[int, ...] = ()
    has_pascals: bool = False

    def level_index(self, level: int) -> int:
        if level not in self.levels:
            raise DataError(f"{self.path} has no level {level} hPa; it has {', '.join(map(str, self.levels))}")
        return self.levels.index(level)

    def read(self, dataset: xr.Dataset, dim: str, where: Mapping[Any, Any], level: int | None = None) -> np.ndarray:
        """Returns fields `(dim, H, W)` in the order of the grid, float32; other dimensions have one entry."""
        if self.level_axis is not None and level is not None:
            where = {**where, self.level_axis: self.level_index(level)}
        dims = (dim, self.orientation.latitude, self.orientation.longitude)
        with damage_as_data_error(self.path, self.name):
            array = dataset[self.name].isel(where)
            array = array.isel({other: 0 for other in array.dims if other not in dims}).transpose(*dims)
            return self.orientation.turn(array.values)


def find_name(dataset: xr.Dataset, path: Path, names: Sequence[str]) -> str:
    """Returns the first of some names that a file has."""
    name = next((name for name in names if name in dataset.data_vars), None)
    if name is None:
        found = ", ".join(map(str, dataset.data_vars)) or "no variable"
        raise DataError(f"{path} holds {found}, expected {' or '.join(names)}")
    return name


def find_variable(dataset: xr.Dataset, path: Path, name: str, grid: Grid | None, *, has_levels: bool) -> FileVariable:
    array, where = dataset[name], f"{path}: {name}"
    with damage_as_data_error(path, name):
        orientation = find_orientation(array, grid, where)
        levels = find_levels(array, where) if has_levels else (None, (), False)
    return FileVariable(path, name, orientation, *levels)
