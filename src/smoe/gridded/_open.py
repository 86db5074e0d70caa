"""Opens what a user names as data, one file or many: xarray objects, NetCDF, GRIB and Zarr."""

from __future__ import annotations

import glob
import itertools
import json
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from smoe._integrity import check_grib_file, check_netcdf_file, check_zarr_array, check_zarr_coordinates
from smoe.errors import DataError, missing_package, naming_extras
from smoe.gridded._axes import are_same_units, with_pixel_coordinates
from smoe.gridded._source import FieldSource, as_slice, field_names
from smoe.gridded._times import TimeLabels, read_times
from smoe.meshes._mesh_files import MESHIO_SUFFIXES, Location
from smoe.meshes._mesh_layouts import is_mesh
from smoe.meshes._node_fields import as_row_of_nodes, is_row_of_nodes, with_mesh_of

if TYPE_CHECKING:
    import xarray as xr


def merge_parts(parts: Sequence[xr.Dataset], where: str) -> xr.Dataset:
    """Merges data sets with different variables; `encoding["notes"]` has what a user should know of it.

    Rows and columns get the order of the first data set. Of the times, those that all data sets have are kept. A data
    set of one time beside others of many is static: its time is dropped.

    Args:
        parts: Data sets; variables that lie on no grid, such as bounds, are left out.
        where: Name of the data in errors.

    Raises:
        DataError: If grids or calendars differ, or no time is common.
    """
    xr = import_xarray()
    if len(parts) == 1:
        return parts[0]
    sources = _without_single_times([FieldSource(part, where=where) for part in parts], where)
    like = sources[0]
    parts = [_fields_alone(like), *(_fields_alone(source, like) for source in sources[1:])]
    notes = [note for source in sources for note in source.notes]
    parts = _at_common_times(parts, sources, where, notes)
    try:
        merged = xr.merge(_without_differing_scalars(parts), join="exact", combine_attrs="drop_conflicts")
    except ValueError as error:
        raise DataError(f"the parts of {where} do not fit together ({' '.join(str(error).split())})") from error
    merged.encoding["notes"] = tuple(notes)
    return merged


def turned(source: FieldSource, like: FieldSource) -> xr.Dataset:
    """A data set whose rows and columns have the order and the coordinates of another one of the same grid.

    Raises:
        DataError: If the grids differ.
    """
    difference = like.grid.difference(source.grid)
    if difference is not None:
        raise DataError(f"two parts of {source.where} are on different grids, {difference}: regrid one of them first")
    dataset = source.dataset
    for role in ("row", "column"):
        ours, theirs = getattr(source.axes, role), getattr(like.axes, role)
        if ours != theirs or ours not in dataset.indexes or dataset.indexes[ours].equals(like.dataset.indexes[ours]):
            continue
        order, wanted = (getattr(each.orientation, f"{role}_order") for each in (source, like))
        dataset = dataset.isel({ours: _positions(order[np.argsort(wanted)])})
        # Files round their coordinates differently.
        dataset = dataset.assign_coords({ours: like.dataset[ours]})
    return with_mesh_of(dataset, like.dataset)


def _fields_alone(source: FieldSource, like: FieldSource | None = None) -> xr.Dataset:
    """The variables on the grid and what maps it."""
    dataset = source.dataset if like is None else turned(source, like)
    names = list(source.variable_axes)
    mappings = {dataset[n].attrs.get("grid_mapping") or dataset[n].encoding.get("grid_mapping") for n in names}
    chosen = dataset[[*names, *(name for name in mappings if name in dataset.data_vars)]]
    return with_mesh_of(chosen, dataset)


def _positions(order: np.ndarray) -> slice | np.ndarray:
    """An order as a slice where it is one: readers turn rows by a slice without a copy."""
    reversed_order = np.arange(len(order))[::-1]
    return slice(None, None, -1) if np.array_equal(order, reversed_order) else as_slice(order)


def _without_single_times(sources: list[FieldSource], where: str) -> list[FieldSource]:
    most = max(0 if source.labels is None else len(source.labels) for source in sources)
    return [
        FieldSource(source.dataset.isel({source.axes.time: 0}, drop=True), where=where)
        if source.labels is not None and source.lead_times is None and len(source.labels) == 1 < most
        else source
        for source in sources
    ]


def _at_common_times(
    parts: list[xr.Dataset], sources: list[FieldSource], where: str, notes: list[str]
) -> list[xr.Dataset]:
    dated = [(number, source) for number, source in enumerate(sources) if source.labels is not None]
    labels: list[TimeLabels] = [source.labels for _, source in dated if source.labels is not None]
    if len({each.calendar for each in labels}) > 1:
        raise DataError(f"the parts of {where} are in the calendars {', '.join(each.calendar for each in labels)}")
    if len(labels) < 2:
        return parts
    common = reduce(np.intersect1d, [each.seconds for each in labels])
    if not len(common):
        spans = " and ".join(f"{each.text(int(each.seconds.min()))} to {each.text(int(each.seconds.max()))}"
                             for each in labels)  # fmt: skip
        raise DataError(f"the parts of {where} have no time in common: they lie from {spans}")
    if len(common) < max(map(len, labels)):
        numbers = ", ".join(str(len(each)) for each in labels)
        notes.append(f"the parts of {where} have {numbers} times, of which the {len(common)} that all have are used")
    parts = list(parts)
    first: Any = None
    for (number, source), each in zip(dated, labels, strict=True):
        time = source.axes.time
        assert time is not None
        order = np.argsort(each.seconds, kind="stable")
        part = parts[number].isel({time: as_slice(order[np.searchsorted(each.seconds[order], common)])})
        first = part if first is None else first
        name = dated[0][1].axes.time
        if time == name and time in part.indexes and not part.indexes[time].equals(first.indexes[time]):
            part = part.assign_coords({time: first[time]})
        parts[number] = part
    return parts


def _without_differing_scalars(parts: list[xr.Dataset]) -> list[xr.Dataset]:
    """Leaves out scalar coordinates that have several values, such as the heights of 2 m and of 10 m."""
    seen: dict[str, set[str]] = {}
    for part in parts:
        for name, coordinate in part.coords.items():
            if coordinate.ndim == 0:
                seen.setdefault(str(name), set()).add(str(coordinate.values))
    differing = [name for name, values in seen.items() if len(values) > 1]
    return [part.drop_vars(differing, errors="ignore") for part in parts]


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


class OpenFiles:
    """The files used last stay open, for a year's channels come from few files.

    Args:
        open_file: Checks a file and opens it.
        capacity: How many stay open.
    """

    def __init__(self, open_file: Callable[[Path], xr.Dataset], capacity: int = 12):
        self._open_file = open_file
        self._capacity = capacity
        self._open: OrderedDict[Path, xr.Dataset] = OrderedDict()
        self._lock = Lock()

    def get(self, path: Path) -> xr.Dataset:
        """The file's data set; nothing but its coordinates is read. Threads may call it."""
        with self._lock:
            if path in self._open:
                self._open.move_to_end(path)
                return self._open[path]
            with damage_as_data_error(path):
                dataset = self._open_file(path)
            while len(self._open) >= self._capacity:
                # Not closed here, for another thread may read it: xarray closes a file that nothing refers to.
                self._open.popitem(last=False)
            self._open[path] = dataset
            return dataset

    def __getstate__(self) -> dict[str, Any]:
        """Without the files that are open: another process opens its own."""
        return {"_open_file": self._open_file, "_capacity": self._capacity}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_open_file"], state["_capacity"])

    def close(self) -> None:
        """Closes all of them."""
        while self._open:
            self._open.popitem()[1].close()


@contextmanager
def damage_as_data_error(path: Path, what: str = "it") -> Iterator[None]:
    """Turns what the reading libraries raise into a DataError that names the file."""
    try:
        with warnings.catch_warnings():
            # Of doubtful dates and fill values: dates are checked here by their values, and NaNs are counted.
            warnings.simplefilter("ignore", import_xarray().SerializationWarning)
            yield
    except (DataError, ModuleNotFoundError):
        raise
    except FileNotFoundError:
        raise DataError(f"{path} does not exist") from None
    except PermissionError:
        raise DataError(f"{path} may not be read by this user") from None
    except Exception as error:
        # Each codec behind NetCDF and Zarr has errors of its own, down to RuntimeError and zlib.error.
        raise DataError(
            f"{path}: {what} cannot be read, the file is damaged or incomplete ({error}); copy or download it again"
        ) from error


def open_netcdf(path: Path) -> xr.Dataset:
    """Checks and opens one NetCDF file of any format; values stay on disk until they are asked for."""
    check_netcdf_file(path)
    return import_xarray().open_dataset(path, engine="netcdf4", cache=False, decode_timedelta=False)


def import_xarray() -> ModuleType:
    """The package xarray, which is not among the core's dependencies."""
    with naming_extras("reading gridded data"):
        import xarray as xr
    return xr


GRIB_ENDINGS = (".grib", ".grib2", ".grb", ".grb2")


def import_cfgrib() -> None:
    """Imports cfgrib, or raises an error that names its extra."""
    try:
        with naming_extras("reading GRIB"):
            import cfgrib  # noqa: F401
    except RuntimeError as error:
        raise missing_package("reading GRIB", "eccodes") from error


def open_grib(path: Path) -> xr.Dataset:
    """Opens a GRIB file; values are read when they are asked for.

    Raises:
        DataError: If the file is damaged.
        MissingPackageError: If cfgrib is not installed.
    """
    import_cfgrib()
    with damage_as_data_error(path):
        check_grib_file(path)
        # No index beside the file: it would be written there, and one that is there is a pickle, which can hold code.
        return import_xarray().open_dataset(
            path, engine="cfgrib", decode_timedelta=False, backend_kwargs={"indexpath": "", "errors": "raise"}
        )
