"""Writes data sets as CF-1.11, to NetCDF or Zarr, whole or not at all."""

from __future__ import annotations

import os
import shutil
import warnings
from datetime import UTC, datetime
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smoe._files import reason_not_to_write, temporary_folder
from smoe.errors import DataError

if TYPE_CHECKING:
    import xarray as xr


CONVENTIONS = "CF-1.11"
# Begin of the names of folders in which outputs are written.
WRITING = ".smoe-writing-"
_CHUNK_BYTES = 1 << 20


def with_provenance(dataset: xr.Dataset, what: str) -> xr.Dataset:
    """A data set with `Conventions` and a new first line of its `history`."""
    has_mesh = any(variable.attrs.get("cf_role") == "mesh_topology" for variable in dataset.variables.values())
    line = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {what}"
    history = str(dataset.attrs.get("history", "")).strip()
    conventions = f"{CONVENTIONS} UGRID-1.0" if has_mesh else CONVENTIONS
    return dataset.assign_attrs(Conventions=conventions, history=f"{line}\n{history}" if history else line)


def check_output(path: Path, *, overwrite: bool = False) -> None:
    if path.suffix not in (".nc", ".nc4", ".zarr"):
        raise DataError(f"the output {path} must end with .nc or .zarr")
    if path.exists() and not overwrite:
        raise DataError(f"{path} exists already: choose another name, or replace it by --overwrite (overwrite=True)")
    if (reason := reason_not_to_write(path.parent)) is not None:
        raise DataError(f"{path} cannot be written: {reason}")


def write_cf(dataset: xr.Dataset, path: Path, *, overwrite: bool = False) -> None:
    """Writes a data set; a stop at any moment leaves nothing behind under its name."""
    check_output(path, overwrite=overwrite)
    for name in map(str, dataset.variables):
        if "/" in name or not name:
            raise DataError(f"{path} cannot be written: {name!r} cannot be the name of a variable in a file, rename it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary_folder(WRITING, path.parent) as folder:
            _write(dataset, folder / path.name)
            if path.is_dir():
                # A folder cannot be replaced: it goes with the temporary one.
                os.rename(path, folder / "replaced")
            os.replace(folder / path.name, path)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}") from error
    except RuntimeError as error:
        if not str(error).startswith("NetCDF: "):
            raise
        why = f"perhaps the disk is full, {shutil.disk_usage(path.parent).free / 1e9:.1f} GB are free there"
        if "illegal characters" in str(error):
            why = "rename the variable, or write a .zarr"
        raise DataError(f"{path} cannot be written: {error}; {why}") from error


def _write(dataset: xr.Dataset, path: Path) -> None:
    if path.suffix == ".zarr":
        with warnings.catch_warnings():
            # Zarr 3 has no consolidated metadata in its specification yet, but readers look for them.
            warnings.filterwarnings("ignore", message="Consolidated metadata")
            # Chunks of fill values are written too: whoever reads them can tell a lost chunk from an empty one.
            encoding = {name: {"write_empty_chunks": True} for name, array in dataset.data_vars.items() if array.ndim}
            dataset.to_zarr(path, mode="w", consolidated=True, encoding=encoding)
    else:
        dataset.to_netcdf(path, engine="netcdf4", encoding=_netcdf_encoding(dataset))


def _netcdf_encoding(dataset: xr.Dataset) -> dict[str, Any]:
    encoding: dict[str, Any] = {}
    for name, array in dataset.data_vars.items():
        if array.dtype.kind == "f" and array.ndim:
            # Whole fields, of about a megabyte: the chunks that the library would choose reach over many times, and are
            # written again with each of them.
            rows = max(1, min(array.shape[0], _CHUNK_BYTES // max(4 * prod(array.shape[1:]), 1)))
            packed = {"zlib": True, "complevel": 1, "chunksizes": (rows, *array.shape[1:])}
            encoding[str(name)] = {"_FillValue": 9.969209968386869e36, "dtype": "float32", **packed}
    return encoding | {str(name): {"_FillValue": None} for name in dataset.coords if dataset[name].dtype.kind == "f"}
