"""Reads a Zarr store with WeatherBench-2's names; its fields have longitude before latitude."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from smoe._integrity import check_zarr_array, check_zarr_coordinates
from smoe.errors import DataError, naming_extras
from smoe.gridded._datasets import OpenFiles, damage_as_data_error, import_xarray
from smoe_paper.atmosphere.grids import GRIDS
from smoe_paper.atmosphere.time_axis import read_time_axis
from smoe_paper.atmosphere.variables import (
    CONSTANTS,
    HOURLY_PRECIPITATION,
    STANDARD_GRAVITY,
    VARIABLES,
    Variable,
    check_constant_name,
)
from smoe_paper.weather.data.constants import check_constant, grid_constant
from smoe_paper.weather.data.series import FieldSeries, Piece
from smoe_paper.weather.data.series_source import SeriesSource

if TYPE_CHECKING:
    import xarray as xr

# Names of the constants in such stores, and their divisors.
_CONSTANTS = {"lsm": ("land_sea_mask", 1.0), "orography": ("geopotential_at_surface", STANDARD_GRAVITY),
              "slt": ("soil_type", 1.0)}  # fmt: skip


class WeatherBench2Source(SeriesSource):
    """Reads a Zarr store of version 2 or 3.

    Args:
        path: Folder of the store.
        resolution: Name of the required grid; None accepts any of `GRIDS`.
    """

    kind = "weatherbench2"

    def __init__(self, path: Path, resolution: str | None):
        super().__init__(path, OpenFiles(_open_zarr))
        grid = None if resolution is None else GRIDS[resolution]
        dataset = self._files.get(path)
        known = [*VARIABLES.values(), HOURLY_PRECIPITATION]
        names = {variable.folder: _name(variable) for variable in known}
        present = [variable for variable in known if names[variable.folder] in dataset.data_vars]
        if not present:
            raise DataError(
                f"{path} has the variables {', '.join(map(str, dataset.data_vars)) or '(none)'}, expected "
                f"WeatherBench-2's: {', '.join(names.values())}"
            )
        with damage_as_data_error(path, "time"):
            axis = read_time_axis(dataset[names[present[0].folder]], str(path))
        first, last = (int(str(time)[:4]) for time in (axis.start, axis.last))
        pieces = [Piece(path, range(first, last + 1))]
        series: dict[str, list[FieldSeries]] = {}
        hourly_precipitation = None
        for variable in present:
            found = _StoreSeries(variable, pieces, (names[variable.folder],), self._files, grid, self._notify)
            if variable is HOURLY_PRECIPITATION:
                hourly_precipitation = found
            else:
                series[variable.short_name] = [found]
        self._set_series(series, hourly_precipitation)

    @property
    def constant_names(self) -> tuple[str, ...]:
        """Returns the constants of the store, and those that follow from the grid."""
        inside = self._files.get(self.path).data_vars
        return tuple(
            n for n in CONSTANTS if n in ("lat2d", "lon2d") or (n in _CONSTANTS and _CONSTANTS[n][0] in inside)
        )

    def read_constant(self, name: str) -> np.ndarray:
        """Returns a constant of the store; `lat2d` and `lon2d` are computed."""
        check_constant_name(name)
        computed = grid_constant(name, self.grid)
        if computed is not None:
            return computed
        store_name, divisor = _CONSTANTS[name]
        if store_name not in self._files.get(self.path).data_vars:
            raise DataError(f"{self.path} has no {store_name}, needed for {name}")
        with damage_as_data_error(self.path, store_name):
            check_zarr_array(self.path, store_name)
        where = f"{self.path}: {store_name}"
        field = self._read_constant_file(self.path, store_name, where)
        return check_constant((field / np.float32(divisor)).astype(np.float32), name, where)

    def _expected_name(self, variable: Variable) -> str:
        return variable.store_name


class _StoreSeries(FieldSeries):
    def _check_complete(self, piece: Piece, array: xr.DataArray, steps_a_day: int) -> None:
        is_late = self.variable.is_accumulated and array.dims[0] == "time"
        check_zarr_array(piece.path, str(array.name), may_begin_late=steps_a_day if is_late else 0)


def _name(variable: Variable) -> str:
    return variable.folder if variable is HOURLY_PRECIPITATION else variable.store_name


def _open_zarr(path: Path) -> xr.Dataset:
    xr = import_xarray()
    with naming_extras("reading a Zarr store"):
        import zarr
    check_zarr_coordinates(path)
    # A request for consolidated metadata that do not exist would warn.
    group = zarr.open_group(path, mode="r")
    is_consolidated = group.metadata.consolidated_metadata is not None
    return xr.open_dataset(path, engine="zarr", chunks=None, cache=False, consolidated=is_consolidated)
