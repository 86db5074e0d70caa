"""Several data sets as one: grids compared by their coordinates, times by their labels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from smoe.errors import DataError
from smoe.gridded.field_source import FieldSource, as_slice
from smoe.gridded.open_files import import_xarray
from smoe.gridded.time_labels import TimeLabels
from smoe.meshes._node_fields import with_mesh_of

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
