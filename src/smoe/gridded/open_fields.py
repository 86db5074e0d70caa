"""Opens what a user names as data: xarray objects, NetCDF, GRIB and Zarr, one file or many."""

from __future__ import annotations

import glob
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smoe.errors import DataError
from smoe.gridded.field_source import FieldSource
from smoe.gridded.grib_files import GRIB_ENDINGS, open_grib
from smoe.gridded.merge_parts import in_order_of, merge_parts
from smoe.gridded.open_files import damage_as_data_error, import_xarray
from smoe.gridded.pixel_coordinates import with_pixel_coordinates
from smoe.meshes.field_files import is_mesh
from smoe.meshes.read_mesh import Location
from smoe.meshes.row_of_nodes import as_row_of_nodes, is_row_of_nodes

if TYPE_CHECKING:
    import xarray as xr

# Formats of meshes, which smoe.read_mesh reads.
_WITHOUT_DATES = (".vtk", ".vtu", ".msh", ".stl", ".ply", ".obj", ".xdmf")

Data = Any
"""A `xarray.Dataset` or `DataArray`, a path or pattern of paths, or several of these, which are merged."""


def open_fields(data: Data, where: str = "inputs", location: Location | None = None) -> xr.Dataset:
    """Opens data without reading more than their coordinates.

    Fields on a mesh, of UGRID or HEALPix, become a grid of one row with the mesh in its coordinates.

    Args:
        data: A data set, an array with a name, a path such as `inputs.zarr` or `t2m_*.nc`, or a list of these.
        where: Name of the data in errors.
        location: Whether fields on the points or on the faces of a mesh are used, where it has both.

    Raises:
        DataError: If a file is missing, damaged or of an unknown kind.
    """
    xr = import_xarray()
    if isinstance(data, xr.Dataset):
        return with_pixel_coordinates(_without_mesh(data, where, location))
    if isinstance(data, xr.DataArray):
        if data.name is None:
            raise DataError(f"{where} is a DataArray without a name: give it one by .rename('t2m')")
        return with_pixel_coordinates(data.to_dataset())
    if isinstance(data, (str, Path)):
        return with_pixel_coordinates(_open_path(str(data), where, location))
    if isinstance(data, Sequence):
        if not data:
            raise DataError(f"{where} names no data")
        return merge_parts([open_fields(part, where, location) for part in data], where)
    raise DataError(f"{where} must be an xarray object or a path, got {type(data).__name__}")


def _open_path(text: str, where: str, location: Location | None) -> xr.Dataset:
    paths = [Path(text)]
    if not paths[0].exists() and glob.has_magic(text):
        paths = [Path(found) for found in sorted(glob.glob(text))]
        if not paths:
            raise DataError(f"no file matches {text!r}, which {where} names")
    parts = [_without_mesh(_open_one(path), str(path), location) for path in paths]
    return parts[0] if len(parts) == 1 else _join(parts, text)


def _without_mesh(dataset: xr.Dataset, where: str, location: Location | None) -> xr.Dataset:
    """Fields on a mesh as a row of nodes; other data sets as they are."""
    if is_row_of_nodes(dataset) or not is_mesh(dataset):
        return dataset
    try:
        return as_row_of_nodes(dataset, location)
    except DataError as error:
        raise DataError(f"{where}: {error}") from error


def _join(parts: list[xr.Dataset], text: str) -> xr.Dataset:
    """Files with the same variables follow each other in time; others are merged."""
    groups: dict[frozenset[str], list[xr.Dataset]] = {}
    for part in parts:
        groups.setdefault(frozenset(map(str, part.data_vars)), []).append(part)
    return merge_parts([_follow(group, text) for group in groups.values()], text)


def _follow(parts: list[xr.Dataset], text: str) -> xr.Dataset:
    """Files that follow each other in time, along a dimension or with a single time each."""
    xr = import_xarray()
    if len(parts) == 1:
        return parts[0]
    source = FieldSource(parts[0], where=text)
    time = source.axes.time or _scalar_time(parts[0])
    if time is None:
        raise DataError(
            f"{len(parts)} files of {text!r} have the same variables but no time: name one of them, or add their times"
        )
    parts = [parts[0], *(in_order_of(part, source, text) for part in parts[1:])]
    if source.axes.time is None:
        parts = [part.expand_dims(time) for part in parts]
    try:
        return xr.concat(
            parts, dim=time, data_vars="minimal", coords="minimal", compat="override", join="exact",
            combine_attrs="drop_conflicts",
        )  # fmt: skip
    except ValueError as error:
        raise DataError(
            f"the {len(parts)} files of {text!r} do not fit together ({' '.join(str(error).split())})"
        ) from error


def _scalar_time(dataset: xr.Dataset) -> str | None:
    names = [str(name) for name, each in dataset.coords.items() if each.ndim == 0 and each.dtype.kind in "MO"]
    return names[0] if len(names) == 1 else None


def _open_one(path: Path) -> xr.Dataset:
    xr = import_xarray()
    chunks = {} if _has_dask() else None
    if not path.exists():
        raise DataError(f"{path} does not exist")
    if path.suffix.lower() in _WITHOUT_DATES:
        raise DataError(f"{path} holds no dates: write its series in time as UGRID NetCDF (docs/geometries.md)")
    with damage_as_data_error(path):
        if path.is_dir():
            if not any((path / name).exists() for name in ("zarr.json", ".zgroup", ".zmetadata")):
                raise DataError(
                    f"{path} is a folder but no Zarr group: name a file, a Zarr store or a pattern of files"
                )
            _check_zarr(path)
            is_consolidated = _is_consolidated(path)
            dataset = xr.open_zarr(path, chunks=chunks, decode_timedelta=False, consolidated=is_consolidated)
            # The library lists the arrays of a folder in the order in which their metadata happen to arrive.
            return dataset if is_consolidated else dataset[sorted(dataset.variables, key=str)]
        if path.suffix in GRIB_ENDINGS:
            return open_grib(path) if chunks is None else open_grib(path).chunk(chunks)
        from smoe.integrity.netcdf_files import check_netcdf_coordinates, check_netcdf_file

        check_netcdf_file(path)
        check_netcdf_coordinates(path)
        return xr.open_dataset(path, engine="netcdf4", chunks=chunks, cache=False, decode_timedelta=False)


def _check_zarr(path: Path) -> None:
    import zarr

    from smoe.integrity.zarr_stores import check_zarr_array, check_zarr_claims

    check_zarr_claims(path)
    group = zarr.open_group(path, mode="r")
    for name, array in group.arrays():
        if len(array.shape) >= 2:
            check_zarr_array(path, name, may_have_mask=True)


def _is_consolidated(path: Path) -> bool:
    # Otherwise xarray warns that it must look for the metadata of each array.
    if (path / ".zmetadata").exists():
        return True
    try:
        return "consolidated_metadata" in json.loads((path / "zarr.json").read_text())
    except (OSError, json.JSONDecodeError):
        return False


def _has_dask() -> bool:
    try:
        import dask.array  # noqa: F401
    except ModuleNotFoundError:
        return False
    return True
