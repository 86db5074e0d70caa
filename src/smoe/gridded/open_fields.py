"""Opens what a user names as data: xarray objects, NetCDF, GRIB and Zarr, one file or many."""

from __future__ import annotations

import glob
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from smoe._integrity import check_netcdf_file, check_zarr_array, check_zarr_coordinates
from smoe.errors import DataError
from smoe.gridded.cf_axes import with_pixel_coordinates
from smoe.gridded.field_source import FieldSource, field_names
from smoe.gridded.grib_files import GRIB_ENDINGS, open_grib
from smoe.gridded.merge_parts import merge_parts, turned
from smoe.gridded.open_files import damage_as_data_error, import_xarray
from smoe.gridded.time_labels import TimeLabels, read_times
from smoe.gridded.units import are_same_units
from smoe.meshes._mesh_files import MESHIO_SUFFIXES, Location, is_mesh
from smoe.meshes._node_fields import as_row_of_nodes, is_row_of_nodes

if TYPE_CHECKING:
    import xarray as xr

# Formats of meshes, which smoe.read_mesh reads.

Data = Any
"""A `xarray.Dataset` or `DataArray`, a path or pattern of paths, or several of these, which are merged."""


def open_fields(
    data: Data, where: str = "inputs", location: Location | None = None, variables: Sequence[str] | None = None
) -> xr.Dataset:
    """Opens data without reading more than their coordinates.

    Fields on a mesh, of UGRID or HEALPix, become a grid of one row with the mesh in its coordinates.

    Args:
        data: A data set, an array with a name, a path such as `inputs.zarr` or `t2m_*.nc`, or a list of these: those
            with the same variables follow each other in time, others are merged.
        where: Name of the data in errors.
        location: Whether fields on the points or on the faces of a mesh are used, where it has both.
        variables: Variables that will be used: where there are several parts, others need not fit together.

    Raises:
        DataError: If a file is missing, damaged or of an unknown kind, or the parts do not fit together.
    """
    xr = import_xarray()
    if isinstance(data, xr.Dataset):
        return with_pixel_coordinates(_without_mesh(data, where, location))
    if isinstance(data, xr.DataArray):
        if data.name is None:
            raise DataError(f"{where} is a DataArray without a name: give it one by .rename('t2m')")
        return with_pixel_coordinates(data.to_dataset())
    if isinstance(data, (str, Path)):
        return _open_path(str(data), where, location, variables)
    if isinstance(data, Sequence):
        if not data:
            raise DataError(f"{where} names no data")
        names = [
            str(part) if isinstance(part, (str, Path)) else f"part {n} of {where}" for n, part in enumerate(data, 1)
        ]
        for name in names:
            if names.count(name) > 1:
                raise DataError(f"{where} names {name} twice")
        parts = [open_fields(part, where, location, variables) for part in data]
        return _join(dict(zip(names, parts, strict=True)), where, variables)
    raise DataError(f"{where} must be an xarray object or a path, got {type(data).__name__}")


def _open_path(text: str, where: str, location: Location | None, variables: Sequence[str] | None) -> xr.Dataset:
    paths = [Path(text)]
    if not paths[0].exists() and glob.has_magic(text):
        paths = [Path(found) for found in sorted(glob.glob(text))]
        if not paths:
            raise DataError(f"no file matches {text!r}, which {where} names")
    parts = {str(path): with_pixel_coordinates(_without_mesh(_open_one(path), str(path), location)) for path in paths}
    return _join(parts, repr(text), variables)


def _without_mesh(dataset: xr.Dataset, where: str, location: Location | None) -> xr.Dataset:
    """Fields on a mesh as a row of nodes; other data sets as they are."""
    if is_row_of_nodes(dataset) or not is_mesh(dataset):
        return dataset
    try:
        return as_row_of_nodes(dataset, location)
    except DataError as error:
        raise DataError(f"{where}: {error}") from error


def _join(named: dict[str, xr.Dataset], where: str, variables: Sequence[str] | None) -> xr.Dataset:
    """Parts with the same fields follow each other in time; others are merged."""
    if len(named) == 1:
        return next(iter(named.values()))
    groups: dict[frozenset[str], dict[str, xr.Dataset]] = {}
    for name, part in named.items():
        if variables is not None and any(wanted in part for wanted in variables):
            part = part.drop_vars([field for field in field_names(part) if field not in variables])
        groups.setdefault(frozenset(field_names(part)), {})[name] = part
    for (fields, parts), (others, other_parts) in itertools.combinations(groups.items(), 2):
        if fields & others:
            more, fewer = (parts, other_parts) if fields - others else (other_parts, parts)
            extra = min((fields - others) or (others - fields))
            raise DataError(
                f"{next(iter(more))} and {next(iter(fewer))} both have {min(fields & others)!r}, but {extra!r} is in "
                "the first only: rename one of them, or name the variables to use (input_variables, --input-variables)"
            )
    return merge_parts([_follow(group, where) for group in groups.values()], where)


def _follow(named: dict[str, xr.Dataset], where: str) -> xr.Dataset:
    """Data sets that follow each other in time, along a dimension or with a single time each."""
    xr = import_xarray()
    if len(named) == 1:
        return next(iter(named.values()))
    sources = [FieldSource(part, where=where) for part in named.values()]
    like = sources[0]
    time = like.axes.time or _scalar_time(like.dataset)
    if time is None:
        raise DataError(
            f"{len(named)} parts of {where} have the same variables but no time: name one of them, or add their times"
        )
    _check_following(dict(zip(named, sources, strict=True)), time)
    parts = [like.dataset, *(turned(source, like) for source in sources[1:])]
    if like.axes.time is None:
        parts = [part.expand_dims(time) for part in parts]
    try:
        joined = xr.concat(
            parts, dim=time, data_vars="minimal", coords="minimal", compat="override", join="exact",
            combine_attrs="drop_conflicts",
        )  # fmt: skip
    except ValueError as error:
        raise DataError(
            f"the {len(named)} parts of {where} do not fit together ({' '.join(str(error).split())})"
        ) from error
    for name in like.variable_axes:
        # Spellings of the same units conflict; packed bounds of files with other scales do, too.
        if "units" in like.dataset[name].attrs:
            joined[name].attrs["units"] = like.dataset[name].attrs["units"]
        ranges = [source.valid_ranges.get(name, (-np.inf, np.inf)) for source in sources]
        whole = min(low for low, _ in ranges), max(high for _, high in ranges)
        joined[name].encoding["valid_range"] = whole if np.isfinite(whole).any() else None
    return joined


def _check_following(sources: dict[str, FieldSource], time: str) -> None:
    """Refuses parts with other units or calendars than the first, or with times of another part.

    Raises:
        DataError: With the names of both parts.
    """
    (first, like), *others = sources.items()
    for name, source in others:
        for ours, theirs in zip(like.channels, source.channels, strict=False):
            if ours.variable == theirs.variable and not are_same_units(ours.units, theirs.units):
                units = [f"in {each!r}" if each else "without units" for each in (ours.units, theirs.units)]
                raise DataError(
                    f"{ours.variable} is {units[0]} in {first} and {units[1]} in {name}: convert one of them"
                )
    seen: dict[int, str] = {}
    first_labels: TimeLabels | None = None
    for name, source in sources.items():
        labels = source.labels or read_times(source.dataset[time].values, f"{time} of {name}")
        first_labels = first_labels or labels
        if labels.calendar != first_labels.calendar:
            raise DataError(
                f"{first} is in the calendar {first_labels.calendar} and {name} in {labels.calendar}: convert one of "
                "them, for example by dataset.convert_calendar('standard')"
            )
        for seconds in labels.seconds.tolist():
            if seconds in seen:
                raise DataError(
                    f"{seen[seconds]} and {name} both have {like.channels[0].variable!r} at {labels.text(seconds)}: "
                    "rename one of them, or drop the times of one"
                )
            seen[seconds] = name


def _scalar_time(dataset: xr.Dataset) -> str | None:
    names = [str(name) for name, each in dataset.coords.items() if each.ndim == 0 and each.dtype.kind in "MO"]
    return names[0] if len(names) == 1 else None


def _open_one(path: Path) -> xr.Dataset:
    xr = import_xarray()
    chunks = {} if _has_dask() else None
    if not path.exists():
        raise DataError(f"{path} does not exist")
    if path.suffix.lower() in MESHIO_SUFFIXES:
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
        check_netcdf_file(path)
        return xr.open_dataset(path, engine="netcdf4", chunks=chunks, cache=False, decode_timedelta=False)


def _check_zarr(path: Path) -> None:
    import zarr

    check_zarr_coordinates(path)
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
