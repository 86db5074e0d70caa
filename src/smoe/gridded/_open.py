"""Opens what a user names as data, one file or many: xarray objects, NetCDF, GRIB and Zarr."""

from __future__ import annotations

import glob
import importlib.util
import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from smoe._files import check_grib_file, check_netcdf_file, check_zarr_store
from smoe.errors import DataError, SmoeError, missing_package, naming_extras
from smoe.gridded._axes import are_same_units, has_leads, with_axes
from smoe.gridded._source import FieldSource, as_slice, field_names, left_out, series_names
from smoe.gridded._times import TimeLabels, decode_times, read_times
from smoe.meshes._mesh import NODES
from smoe.meshes._node_rows import Location, as_row_of_nodes

if TYPE_CHECKING:
    import xarray as xr

Data = Any
"""A `xarray.Dataset` or `DataArray`, a path or pattern of paths, or several of these, which are merged."""

OpenOptions = Mapping[str, Any]
"""Arguments of `xarray.open_dataset`, such as `engine`, `group`, `decode_times`, and cfgrib's `filter_by_keys`."""

_GRIB_ENDINGS = (".grib", ".grib2", ".grb", ".grb2")
_GRIB_OPTIONS = ("filter_by_keys", "read_keys", "time_dims", "squeeze", "encode_cf", "indexpath", "errors")
_MESH_ENDINGS = (".vtu", ".vtk", ".msh", ".ply", ".stl", ".obj")
_NETCDF_ENDINGS = (".nc", ".nc4", ".cdf")
_ENGINES = {"cfgrib": "grib", "netcdf4": "netcdf", "zarr": "zarr"}


def open_fields(
    data: Data,
    where: str = "inputs",
    location: Location | None = None,
    variables: Sequence[str] | None = None,
    open_options: OpenOptions | None = None,
) -> xr.Dataset:
    """Opens data without reading more than their coordinates.

    Parts with the same variables follow each other in time, others are merged; those that are not among `variables`
    need not fit together. Fields on a mesh, of UGRID or HEALPix, become a grid of one row with the mesh in its
    coordinates; `location` chooses its points or faces, where it has fields on both. `where` names the data in errors.
    Of the options, those of cfgrib are given to GRIB files only, and `group` to others.
    """
    xr = import_xarray()
    if isinstance(data, xr.Dataset):
        dataset = with_axes(_without_mesh(data, where, location))
    elif isinstance(data, xr.DataArray):
        if data.name is None:
            raise DataError(f"{where} is a DataArray without a name: give it one by .rename('t2m')")
        dataset = with_axes(data.to_dataset())
    elif isinstance(data, (str, Path)):
        dataset = _open_paths(str(data), where, location, variables, open_options or {})
    elif isinstance(data, Sequence):
        if not data:
            raise DataError(f"{where} names no data")
        parts: dict[str, xr.Dataset] = {}
        for number, part in enumerate(data, 1):
            name = str(part) if isinstance(part, (str, Path)) else f"part {number} of {where}"
            if name in parts:
                raise DataError(f"{where} names {name} twice")
            parts[name] = open_fields(part, where, location, variables, open_options)
        dataset = _join(parts, where, variables)
    else:
        raise DataError(f"{where} must be an xarray object or a path, got {type(data).__name__}")
    return _at_valid_times(dataset, where, variables) if where == "targets" and has_leads(dataset) else dataset


def _open_paths(
    text: str, where: str, location: Location | None, variables: Sequence[str] | None, options: OpenOptions
) -> xr.Dataset:
    paths = [Path(text)]
    if not paths[0].exists() and glob.has_magic(text):
        paths = [Path(found) for found in sorted(glob.glob(text))]
        if not paths:
            raise DataError(f"no file matches {text!r}, which {where} names")
    files = {}
    for path in paths:
        cubes = [with_axes(_without_mesh(cube, str(path), location)) for cube in open_one(path, options)]
        files[str(path)] = cubes[0] if len(cubes) == 1 else _merge_cubes(cubes, path, variables)
    return _join(files, repr(text), variables)


def _at_valid_times(dataset: xr.Dataset, where: str, variables: Sequence[str] | None) -> xr.Dataset:
    """Targets along valid times where each of these occurs once, as in ERA5's sums of rain; else as they are."""
    source = FieldSource(dataset, variables, where)
    if source.labels is None or source.lead_times is None or not source.axes.time or not source.axes.lead:
        return dataset
    dims = (source.axes.time, source.axes.lead)
    seconds = (source.labels.seconds[:, None] + source.lead_times).ravel()
    if source.lead_times.min() <= 0 or len(np.unique(seconds)) < len(seconds):
        return dataset
    along = [str(name) for name, each in dataset.coords.items() if set(dims) & set(each.dims)]
    stacked = dataset[list(source.variable_axes)].drop_vars(along).stack(valid_time=dims, create_index=False)
    attributes = {"standard_name": "time"}
    dates = ("valid_time", source.labels.coordinate(seconds), attributes)
    stacked = stacked.assign_coords(valid_time=dates).transpose("valid_time", ...).sortby("valid_time")
    stacked.encoding["notes"] = (*source.notes, f"start and lead times of the {where} are taken as valid times")
    return stacked


def _without_mesh(dataset: xr.Dataset, where: str, location: Location | None) -> xr.Dataset:
    """Fields on a UGRID mesh or HEALPix sphere as a row of nodes; other data sets as they are."""
    marks = (("cf_role", "mesh_topology"), ("grid_mapping_name", "healpix"))
    described = [each.attrs for each in (dataset, *dataset.variables.values())]
    is_mesh = any("healpix_nside" in each or any(each.get(name) == mark for name, mark in marks) for each in described)
    if NODES in dataset.coords or not is_mesh:
        return dataset
    try:
        return as_row_of_nodes(dataset, location)
    except DataError as error:
        raise DataError(f"{where}: {error}") from error


def open_one(path: Path, options: OpenOptions) -> list[xr.Dataset]:
    """The data set of a file or store; the data sets of a GRIB file whose fields do not make one."""
    if not path.exists():
        raise DataError(f"{path} does not exist")
    if path.suffix.lower() in _MESH_ENDINGS:
        raise DataError(f"{path} holds no dates: write its series in time as UGRID NetCDF (docs/geometries.md)")
    has_dask = importlib.util.find_spec("dask") is not None
    given: dict[str, Any] = {"chunks": {} if has_dask else None, "decode_timedelta": False, **options}
    with damage_as_data_error(path, is_opening=True):
        kind = _ENGINES.get(str(options["engine"]), "other") if "engine" in options else _kind_of(path)
        if kind == "grib":
            given.pop("group", None)
            return _open_grib(path, given)
        given = {name: value for name, value in given.items() if name not in _GRIB_OPTIONS}
        target: Any = path
        if kind == "netcdf":
            check_netcdf_file(path)
            given = {"engine": "netcdf4", "cache": False, **given}
        elif kind == "zarr":
            target, is_consolidated = check_zarr_store(path, str(given.get("group") or ""))
            given = {"engine": "zarr", "consolidated": is_consolidated, **given}
        dataset = _decoded(target, given)
        if not dataset.variables:
            _refuse_empty(path, target, given)
        if kind == "zarr" and not given["consolidated"]:
            # The library lists the arrays of a folder in the order in which their metadata happen to arrive.
            dataset = dataset[sorted(dataset.variables, key=str)]
        dataset.encoding.setdefault("source", str(path))
        return [dataset]


def _kind_of(path: Path) -> str:
    """`zarr`, `grib` or `netcdf`, by the first bytes of a file rather than by its name."""
    if path.is_dir():
        if not any((path / name).exists() for name in ("zarr.json", ".zgroup", ".zmetadata")):
            raise DataError(f"{path} is a folder but no Zarr group: name a file, a Zarr store or a pattern of files")
        return "zarr"
    if not path.is_file() or path.suffix.lower() in _NETCDF_ENDINGS:
        return "netcdf"
    with path.open("rb") as file:
        start = file.read(8)
    if start[:4] == b"GRIB" or path.suffix.lower() in _GRIB_ENDINGS:
        return "grib"
    if start[:4] == b"PK\x03\x04":
        return "zarr"
    if start[:3] == b"CDF" or start[1:4] == b"HDF" or not start:
        return "netcdf"
    raise DataError(
        f"{path} is neither NetCDF nor GRIB nor Zarr: it begins with {start!r}; convert it to NetCDF, or name the "
        "engine of xarray that reads it (open_options={'engine': ...}, --open engine=...)"
    )


def _decoded(target: Any, options: dict[str, Any]) -> xr.Dataset:
    xr = import_xarray()
    try:
        return xr.open_dataset(target, **options)
    except OSError as error:
        if "group not found" in str(error):
            raise DataError(f"{target} has no group {options['group']!r}") from error
        raise
    except (ValueError, OverflowError) as error:
        if "decode_times" in options or "decode" not in str(error) or "time" not in str(error):
            raise
        return decode_times(xr.open_dataset(target, decode_times=False, **options))


def _refuse_empty(path: Path, target: Any, options: Mapping[str, Any]) -> None:
    found = import_xarray().open_groups(target, **{name: value for name, value in options.items() if name != "group"})
    groups = [name for name, dataset in found.items() if dataset.data_vars]
    if groups:
        raise DataError(
            f"{path} has its variables in the groups {', '.join(groups)}: name one of them "
            f"(open_options={{'group': {groups[0]!r}}}, --open group={groups[0]})"
        )


def _open_grib(path: Path, options: dict[str, Any]) -> list[xr.Dataset]:
    import_cfgrib()
    import cfgrib

    check_grib_file(path)
    chunks = options.pop("chunks")
    # No index beside the file: it would be written there, and one that is there is a pickle, which can hold code.
    given = {"errors": "raise", **options, "engine": "cfgrib", "indexpath": ""}
    try:
        cubes = [import_xarray().open_dataset(path, **given)]
    except cfgrib.DatasetBuildError:
        own = {name: given.pop(name) for name in _GRIB_OPTIONS if name in given}
        with warnings.catch_warnings():
            # Of the way in which cfgrib itself merges data sets.
            warnings.simplefilter("ignore", FutureWarning)
            cubes = cfgrib.open_datasets(str(path), backend_kwargs=own, **given)
    return cubes if chunks is None else [cube.chunk(chunks) for cube in cubes]


def _merge_cubes(cubes: list[xr.Dataset], path: Path, variables: Sequence[str] | None) -> xr.Dataset:
    """Fields of a GRIB file on several kinds of levels, or at several steps, as one data set."""
    names = [f"part {number} of {path}" for number in range(1, len(cubes) + 1)]
    parts = {
        name: cube
        for name, cube in zip(names, cubes, strict=True)
        if variables is None or any(wanted in cube for wanted in variables)
    }
    try:
        return _join(parts or dict(zip(names, cubes, strict=True)), str(path), variables)
    except DataError as error:
        kinds = {
            f"{name} on {array.attrs.get('GRIB_typeOfLevel', '?')} ({array.attrs.get('GRIB_stepType', '?')})"
            for cube in parts.values()
            for name, array in cube.data_vars.items()
        }
        listed = ", ".join(sorted(kinds)[:12]) + (f" and {len(kinds) - 12} more" if len(kinds) > 12 else "")
        raise DataError(
            f"{path} holds {listed}, which do not make one data set ({error}): choose some of them, for example by "
            "open_options={'filter_by_keys': {'typeOfLevel': 'surface'}}, "
            """--open 'filter_by_keys={"typeOfLevel": "surface"}'"""
        ) from error


def import_xarray() -> ModuleType:
    with naming_extras("reading gridded data"):
        import xarray as xr
    return xr


def import_cfgrib() -> None:
    try:
        with naming_extras("reading GRIB"):
            import cfgrib  # noqa: F401
    except RuntimeError as error:
        raise missing_package("reading GRIB", "eccodes") from error


def open_netcdf(path: Path) -> xr.Dataset:
    check_netcdf_file(path)
    return import_xarray().open_dataset(path, engine="netcdf4", cache=False, decode_timedelta=False)


_OF_METADATA = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, NotImplementedError)


@contextmanager
def damage_as_data_error(path: Path, what: str = "it", *, is_opening: bool = False) -> Iterator[None]:
    """Turns what the reading libraries raise into a DataError that names the file."""
    try:
        with warnings.catch_warnings():
            # Of doubtful dates and fill values: dates are checked here by their values, and NaNs are counted.
            warnings.simplefilter("ignore", import_xarray().SerializationWarning)
            yield
    except (SmoeError, ModuleNotFoundError):
        raise
    except PermissionError:
        raise DataError(f"{path} may not be read by this user") from None
    except FileNotFoundError as error:
        raise DataError(f"{path} {'does not exist' if not path.exists() else f'lacks a part ({error})'}") from None
    except Exception as error:
        # Each codec behind NetCDF and Zarr has errors of its own, down to RuntimeError and zlib.error.
        if not is_opening or not (isinstance(error, _OF_METADATA) or type(error).__module__.startswith("gribapi")):
            raise DataError(
                f"{path}: {what} cannot be read, the file is damaged or incomplete ({' '.join(str(error).split())}); "
                "copy or download it again"
            ) from error
        raise DataError(
            f"{path}: {what} cannot be decoded ({' '.join(str(error).split())}); give other arguments of "
            "xarray.open_dataset (open_options, --open), or correct the file"
        ) from error


def _join(named: dict[str, xr.Dataset], where: str, variables: Sequence[str] | None) -> xr.Dataset:
    """Parts with the same fields follow each other in time; others are merged."""
    if len(named) == 1:
        return next(iter(named.values()))
    groups: dict[frozenset[str], dict[str, xr.Dataset]] = {}
    for name, part in named.items():
        if variables is not None and any(wanted in part for wanted in variables):
            part = part.drop_vars([field for field in field_names(part) if field not in variables])
        groups.setdefault(frozenset(field_names(part) or series_names(part)), {})[name] = part
    for (fields, parts), (others, other_parts) in itertools.combinations(groups.items(), 2):
        if fields & others:
            more, fewer = (parts, other_parts) if fields - others else (other_parts, parts)
            extra = min((fields - others) or (others - fields))
            raise DataError(
                f"{next(iter(more))} and {next(iter(fewer))} both have {min(fields & others)!r}, but {extra!r} is in "
                "the first only: rename one of them, or name the variables to use (input_variables, --input-variables)"
            )
    return _merge([_concatenate(group, where) for group in groups.values()], where)


def _merge(parts: Sequence[xr.Dataset], where: str) -> xr.Dataset:
    """Merges data sets with different variables; `encoding["notes"]` has what a user should know of it.

    Rows and columns get the order of the first data set. Of the times, those that all data sets have are kept. A data
    set of one time beside others of many is static: its time is dropped. Variables that lie on no grid, such as bounds,
    are left out, but for those of time alone.
    """
    xr = import_xarray()
    if len(parts) == 1:
        return parts[0]
    sources = _without_single_times([FieldSource(part, where=where) for part in parts if field_names(part)], where)
    if not sources:
        raise DataError(f"{where} has no variable on a grid")
    like = sources[0]
    dated = [(_fields_alone(source, like), source.axes.time, source.labels) for source in sources]
    for part in parts:
        if not field_names(part) and (names := series_names(part)):
            time = str(part[names[0]].dims[0])
            dated.append((part[names], time, read_times(part[time].values, f"{time} of {where}")))
    notes = [
        note for part in parts for note in (*part.encoding.get("notes", ()), *left_out(part, where, series_names(part)))
    ]
    try:
        merged = xr.merge(
            _without_differing_scalars(_at_common_times(dated, where, notes)),
            join="exact",
            combine_attrs="drop_conflicts",
        )
    except ValueError as error:
        if isinstance(error, SmoeError):
            raise
        raise DataError(f"the parts of {where} do not fit together ({' '.join(str(error).split())})") from error
    merged.encoding["notes"] = tuple(notes)
    return merged


def _fields_alone(source: FieldSource, like: FieldSource) -> xr.Dataset:
    """The variables on the grid, those of time alone, and what maps the grid."""
    dataset = source.dataset if source is like else _oriented_like(source, like)
    names = [
        *source.variable_axes,
        *(each for each in series_names(dataset) if dataset[each].dims[0] == source.axes.time),
    ]
    mappings = {dataset[n].attrs.get("grid_mapping") or dataset[n].encoding.get("grid_mapping") for n in names}
    return dataset[[*names, *(name for name in mappings if name in dataset.data_vars)]]


def _oriented_like(source: FieldSource, like: FieldSource) -> xr.Dataset:
    """A data set whose rows and columns have the order and the coordinates of another one of the same grid."""
    difference = like.grid.difference(source.grid)
    if difference is not None:
        raise DataError(f"two parts of {source.where} are on different grids, {difference}: regrid one of them first")
    dataset = source.dataset
    for role in ("row", "column"):
        ours, theirs = getattr(source.axes, role), getattr(like.axes, role)
        if ours != theirs or ours not in dataset.indexes or dataset.indexes[ours].equals(like.dataset.indexes[ours]):
            continue
        order, wanted = (getattr(each.orientation, f"{role}_order") for each in (source, like))
        # Files round their coordinates differently.
        dataset = dataset.isel({ours: as_slice(order[np.argsort(wanted)])}).assign_coords({ours: like.dataset[ours]})
    # The same nodes, of which one description is kept.
    return dataset if NODES not in dataset.coords else dataset.assign_coords({NODES: like.dataset[NODES]})


def _without_single_times(sources: list[FieldSource], where: str) -> list[FieldSource]:
    most = max((0 if source.labels is None else len(source.labels) for source in sources), default=0)
    return [
        FieldSource(source.dataset.isel({source.axes.time: 0}, drop=True), where=where)
        if source.labels is not None and source.lead_times is None and len(source.labels) == 1 < most
        else source
        for source in sources
    ]


def _at_common_times(
    parts: Sequence[tuple[xr.Dataset, str | None, TimeLabels | None]], where: str, notes: list[str]
) -> list[xr.Dataset]:
    all_labels = [labels for _, _, labels in parts if labels is not None]
    if len({each.calendar for each in all_labels}) > 1:
        raise DataError(f"the parts of {where} are in the calendars {', '.join(each.calendar for each in all_labels)}")
    if len(all_labels) < 2:
        return [part for part, _, _ in parts]
    common = reduce(np.intersect1d, [each.seconds for each in all_labels])
    if not len(common):
        spans = " and ".join(each.span() for each in all_labels)
        raise DataError(f"the parts of {where} have no time in common: they lie from {spans}")
    if len(common) < max(map(len, all_labels)):
        numbers = ", ".join(str(len(each)) for each in all_labels)
        notes.append(f"the parts of {where} have {numbers} times, of which the {len(common)} that all have are used")
    chosen: list[xr.Dataset] = []
    first: tuple[str, xr.Dataset] | None = None
    for part, time, labels in parts:
        if labels is not None and time is not None:
            order = np.argsort(labels.seconds, kind="stable")
            part = part.isel({time: as_slice(order[np.searchsorted(labels.seconds[order], common)])})
            if first is None:
                first = time, part
            elif time == first[0] and time in part.indexes:
                part = part.assign_coords({time: first[1][time]})
            elif time != first[0] and set(part.dims) == {time}:
                part = part.drop_vars(time).rename({time: first[0]}).assign_coords({first[0]: first[1][first[0]]})
        chosen.append(part)
    return chosen


def _without_differing_scalars(parts: list[xr.Dataset]) -> list[xr.Dataset]:
    """Leaves out scalar coordinates that have several values, such as the heights of 2 m and of 10 m."""
    scalars = {(name, str(each.values)) for part in parts for name, each in part.coords.items() if each.ndim == 0}
    names = [name for name, _ in scalars]
    differing = {name for name in names if names.count(name) > 1}
    return [part.drop_vars(differing, errors="ignore") for part in parts]


def _concatenate(named: dict[str, xr.Dataset], where: str) -> xr.Dataset:
    """Data sets that follow each other in time, along a dimension or with a single time each."""
    xr = import_xarray()
    if len(named) == 1:
        return next(iter(named.values()))
    first, *others = named.values()
    like = FieldSource(first, where=where)
    sources = [like, *(FieldSource(part, where=where, like=like.channels) for part in others)]
    scalars = [str(name) for name, each in like.dataset.coords.items() if each.ndim == 0 and each.dtype.kind in "MO"]
    time = like.axes.time or (scalars[0] if len(scalars) == 1 else None)
    if time is None:
        raise DataError(
            f"{len(named)} parts of {where} have the same variables but no time: name one of them, or add their times"
        )
    _check_concatenable(dict(zip(named, sources, strict=True)), time)
    parts = [like.dataset, *(_oriented_like(source, like) for source in sources[1:])]
    if like.axes.time is None:
        parts = [part.expand_dims(time) for part in parts]
    try:
        joined = xr.concat(
            parts, dim=time, data_vars="minimal", coords="minimal", compat="override", join="exact",
            combine_attrs="drop_conflicts",
        )  # fmt: skip
    except ValueError as error:
        raise DataError(f"the parts of {where} do not fit together ({' '.join(str(error).split())})") from error
    for name in like.variable_axes:
        # Spellings of the same units conflict; packed bounds of files with other scales do, too.
        if "units" in like.dataset[name].attrs:
            joined[name].attrs["units"] = like.dataset[name].attrs["units"]
        ranges = [source.valid_ranges.get(name, (-np.inf, np.inf)) for source in sources]
        whole = min(low for low, _ in ranges), max(high for _, high in ranges)
        joined[name].encoding["valid_range"] = whole if np.isfinite(whole).any() else None
    return joined


def _check_concatenable(sources: dict[str, FieldSource], time: str) -> None:
    (first, like), *others = sources.items()
    for name, source in others:
        for ours, theirs in zip(like.channels, source.channels, strict=False):
            if ours.variable == theirs.variable and not are_same_units(ours.units, theirs.units):
                units = [f"in {each!r}" if each else "without units" for each in (ours.units, theirs.units)]
                raise DataError(
                    f"{ours.variable} is {units[0]} in {first} and {units[1]} in {name}: convert one of them"
                )
    seen: dict[int, str] = {}
    calendar = ""
    for name, source in sources.items():
        labels = source.labels or read_times(source.dataset[time].values, f"{time} of {name}")
        calendar = calendar or labels.calendar
        if labels.calendar != calendar:
            raise DataError(
                f"{first} is in the calendar {calendar} and {name} in {labels.calendar}: convert one of them, for "
                "example by dataset.convert_calendar('standard')"
            )
        for seconds in labels.seconds.tolist():
            if seen.setdefault(seconds, name) != name:
                raise DataError(
                    f"{seen[seconds]} and {name} both have {like.channels[0].variable!r} at {labels.text(seconds)}: "
                    "rename one of them, or drop the times of one"
                )
