"""Variables of a data set as channels of fields on one grid, read block by block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from smoe.errors import DataError, suggest
from smoe.gridded._axes import Axes, find_axes, level_values, scalar_level
from smoe.gridded._grids import HorizontalGrid, Orientation, Regridding, read_grid, read_pole
from smoe.gridded._times import TimeLabels, read_lead_times, read_times

if TYPE_CHECKING:
    import xarray as xr


def load_arrays(arrays: Mapping[str, xr.DataArray], where: str) -> dict[str, np.ndarray]:
    lazy = {name: array.data for name, array in arrays.items() if array.chunks is not None}
    loaded: dict[str, Any] = {}
    if lazy:
        import dask

        # Each codec has errors of its own. Read alone and in this process, the array and its error are known.
        with suppress(Exception):
            loaded = dict(zip(lazy, dask.compute(*lazy.values()), strict=True))
    for name, array in arrays.items():
        try:
            if name not in loaded:
                is_lazy = array.chunks is not None
                loaded[name] = np.asarray(array.data.compute(scheduler="synchronous") if is_lazy else array.values)
        except Exception as error:
            raise DataError(
                f"{name} of {where} cannot be read, the file is damaged or incomplete "
                f"({type(error).__name__}: {' '.join(str(error).split())}); copy it again"
            ) from error
        if loaded[name].dtype.kind not in "iufb":
            raise DataError(f"{name} of {where} holds {loaded[name].dtype} values, no numbers: leave it out")
    return loaded


@dataclass(frozen=True)
class Channel:
    """One field at each time: a variable, or one level of it, pressures in hPa.

    `selected_level` is the scalar level of a variable without levels. Units and standard names may be empty.
    """

    variable: str
    units: str = ""
    level: float | None = None
    standard_name: str = ""
    is_static: bool = False
    selected_level: float | None = None

    @property
    def name(self) -> str:
        """Name with the level, such as `t_850`."""
        return self.variable if self.level is None else f"{self.variable}_{self.level:g}"


class FieldSource:
    """The variables of a data set, all on one grid.

    Levels are those of the file, or of `like`, channels whose levels are chosen in their order. With `with_series`,
    variables of time alone are the last channels, with the same value at all pixels. The position of a field is that of
    its time; for forecasts, `start * num_leads + lead`.

    `labels` are the times, None if nothing depends on time; `lead_times` those of forecasts in seconds, None for other
    fields; `axes` the dimensions of the variable with the most of them; `notes` what a user should know of the data:
    variables that are left out, times that not all parts have; `num_invalid` counts the values read that lie outside of
    the valid range that a variable declares.
    """

    def __init__(
        self,
        dataset: xr.Dataset,
        variables: Sequence[str] | None = None,
        where: str = "inputs",
        *,
        with_series: bool = False,
        like: Sequence[Channel] | None = None,
    ) -> None:
        self.dataset, self.where = dataset, where
        names = list(variables) if variables is not None else field_names(dataset)
        self.notes: tuple[str, ...] = dataset.encoding.get("notes", ())
        may_be_series = [name for name in names if with_series and _is_series(dataset, name)]
        names = [name for name in names if name not in may_be_series]
        for name in names if variables is not None else ():
            _check_field(dataset, name, where)
        if not names:
            raise DataError(
                f"{where} has no variable on a grid: it holds {', '.join(map(str, dataset.variables)) or 'nothing'}"
            )
        found = {name: self._find_axes(name, may_leave_out=variables is None and len(names) > 1) for name in names}
        self.variable_axes: dict[str, Axes] = found
        richest = max(names, key=lambda name: dataset[name].ndim)
        self.axes = found[richest]
        if variables is None and with_series:
            may_be_series = [name for name in series_names(dataset) if dataset[name].dims == (self.axes.time,)]
        for name in may_be_series:
            if dataset[name].dims != (self.axes.time,):
                _check_field(dataset, name, where)
        self.series = may_be_series
        if variables is None:
            self.notes += left_out(dataset, where, self.series)
        if self.series:
            self.notes += (f"variables of {where} of time alone are the same at all pixels: {', '.join(self.series)}",)
        if like is not None:
            self._order_levels(like)
        self.grid, self.orientation = self._one_grid(found)
        self._file_shape = self.grid.shape
        self._regridding: Regridding | None = None
        channels = [channel for name in names for channel in self._channels(name)]
        self.channels = (*channels, *(_describe(self.dataset[name], is_static=False) for name in self.series))
        self.labels, self.lead_times = self._times()
        self._static: dict[str, np.ndarray] = {}
        ranges = {name: valid_range(self.dataset[name]) for name in names}
        self.valid_ranges = {name: bounds for name, bounds in ranges.items() if bounds is not None}
        self.num_invalid: dict[str, int] = {}

    def _order_levels(self, like: Sequence[Channel]) -> None:
        for name, axes in self.variable_axes.items():
            wanted = [channel.level for channel in like if channel.variable == name and channel.level is not None]
            if axes.level is None or not wanted:
                continue
            levels = self._levels(name, axes.level).tolist()
            if lacking := [level for level in wanted if level not in levels]:
                there = ", ".join(f"{each:g}" for each in levels)
                raise DataError(f"{name} of {self.where} has no level {lacking[0]:g}, but {there}")
            order = np.asarray([levels.index(level) for level in wanted])
            if not np.array_equal(order, np.arange(self.dataset.sizes[axes.level])):
                self.dataset = self.dataset.isel({axes.level: as_slice(order)})

    def _find_axes(self, name: str, *, may_leave_out: bool) -> Axes:
        try:
            return find_axes(self.dataset[name], f"{name} of {self.where}")
        except DataError as error:
            if not may_leave_out:
                raise
            option = "target_variables" if self.where == "targets" else "input_variables"
            flag = f"--{option.replace('_', '-')}"
            raise DataError(f"{error}; or leave {name} out: {option} ({flag}) names those to use") from None

    @property
    def num_leads(self) -> int:
        return 1 if self.lead_times is None else len(self.lead_times)

    @property
    def num_positions(self) -> int:
        """Number of fields of each channel: times, or start times by lead times; 1 without time."""
        return 1 if self.labels is None else len(self.labels) * self.num_leads

    @property
    def num_bytes(self) -> int:
        return 4 * self.num_positions * len(self.channels) * self.grid.shape[0] * self.grid.shape[1]

    @property
    def time_chunk(self) -> int:
        """Times that lie in one chunk of the file, at most over all variables; 1 where nothing is chunked."""
        sizes = [1]
        for name, axes in self.variable_axes.items():
            array = self.dataset[name]
            stored = array.encoding.get("chunksizes") or array.encoding.get("chunks") or ()
            if axes.time is not None and len(stored) == array.ndim:
                sizes.append(int(stored[array.dims.index(axes.time)]))
        return max(sizes)

    def read(self, positions: np.ndarray) -> np.ndarray:
        """Reads fields: float32, rows northwards and columns eastwards, `(N, C, H, W)`."""
        positions = np.asarray(positions, np.int64)
        dated = {name: axes for name, axes in self.variable_axes.items() if axes.time is not None}
        num_leads = self.num_leads
        loaded = load_arrays({name: self._select(name, axes, positions) for name, axes in dated.items()}, self.where)
        parts = []
        for name, axes in self.variable_axes.items():
            if axes.time is None:
                fields = self._static_fields(name, axes)
                parts.append(np.broadcast_to(fields, (len(positions), *fields.shape)))
            else:
                fields = self._as_channels(loaded.pop(name), name, axes)
                parts.append(_in_order_of(fields, positions, num_leads, has_leads=axes.lead is not None))
        chosen = as_slice(np.unique(positions // num_leads))
        series = {name: self.dataset[name].isel({self.axes.time: chosen}) for name in self.series}
        for values in load_arrays(series, self.where).values():
            planes = np.broadcast_to(values.reshape(-1, 1, 1, 1), (len(values), 1, *self._file_shape))
            parts.append(_in_order_of(planes, positions, num_leads, has_leads=False))
        # A copy in any case: callers may change what they get, and it may be the user's own array.
        output = np.concatenate(parts, axis=1, dtype=np.float32)
        return output if self._regridding is None else self._regridding(output)

    def regrid_to(self, grid: HorizontalGrid) -> None:
        self._regridding, self.grid = Regridding(self.grid, grid), grid
        if self._regridding.beyond:
            self.notes += (
                f"the targets reach {self._regridding.beyond:.2g} steps of the {self.where} beyond their outermost "
                "pixels, where the nearest values hold",
            )

    def _select(self, name: str, axes: Axes, positions: np.ndarray) -> xr.DataArray:
        """The times, and lead times, of some positions, each once, with the dimensions in the order of the fields."""
        array = self.dataset[name].isel({axes.time: as_slice(np.unique(positions // self.num_leads))})
        if axes.lead is not None:
            array = array.isel({axes.lead: as_slice(np.unique(positions % self.num_leads))})
        return array.transpose(*axes.in_order)

    def _static_fields(self, name: str, axes: Axes) -> np.ndarray:
        """A variable without time, `(levels, H, W)`."""
        if name not in self._static:
            values = load_arrays({name: self.dataset[name].transpose(*axes.in_order)}, self.where)[name]
            self._static[name] = self._as_channels(values, name, axes)[0]
        return self._static[name]

    def _as_channels(self, values: np.ndarray, name: str, axes: Axes) -> np.ndarray:
        """Values of a variable as `(times or times * leads, levels, H, W)`, rows northwards and columns eastwards."""
        num_levels = 1 if axes.level is None else self.dataset.sizes[axes.level]
        values = values.reshape(-1, num_levels, *self._file_shape)
        if name in self.valid_ranges:
            low, high = self.valid_ranges[name]
            # Missing according to CF. Bounds are rounded as the values are.
            margin = 1e-6 * max(abs(bound) for bound in (low, high) if np.isfinite(bound))
            is_invalid = (values < low - margin) | (values > high + margin)
            if is_invalid.any():
                self.num_invalid[name] = self.num_invalid.get(name, 0) + int(is_invalid.sum())
                values = np.where(is_invalid, np.nan, values)
        return self.orientations[name].turn(values.astype(np.float32, copy=False))

    def _one_grid(self, found: dict[str, Axes]) -> tuple[HorizontalGrid, Orientation]:
        self.orientations: dict[str, Orientation] = {}
        first, first_grid = next(iter(found)), None
        for name, axes in found.items():
            array = self.dataset[name]
            grid, self.orientations[name] = read_grid(array, axes, f"{name} of {self.where}")
            mapping = array.attrs.get("grid_mapping") or array.encoding.get("grid_mapping")
            if grid.kind == "rotated" and mapping in self.dataset.variables:
                grid = replace(grid, pole=read_pole(self.dataset[mapping].attrs))
            first_grid = first_grid or grid
            difference = first_grid.difference(grid)
            if difference is not None:
                raise DataError(
                    f"{first} and {name} of {self.where} are on different grids, {difference}; leave one out"
                )
        assert first_grid is not None
        return first_grid, self.orientations[first]

    def _channels(self, name: str) -> list[Channel]:
        array, axes = self.dataset[name], self.variable_axes[name]
        channel = _describe(array, is_static=axes.time is None)
        if axes.level is None:
            return [replace(channel, selected_level=scalar_level(array))]
        levels = self._levels(name, axes.level)
        if len(np.unique(levels)) < len(levels):
            raise DataError(f"{name} of {self.where} holds a level twice: {', '.join(f'{each:g}' for each in levels)}")
        return [replace(channel, level=float(level)) for level in levels]

    def _levels(self, name: str, dimension: str) -> np.ndarray:
        array = self.dataset[name]
        has_values = dimension in array.coords and array[dimension].dtype.kind in "iuf"
        return level_values(array[dimension]) if has_values else np.arange(array.sizes[dimension], dtype=np.float64)

    def _times(self) -> tuple[TimeLabels | None, np.ndarray | None]:
        labels: TimeLabels | None = None
        lead_times: np.ndarray | None = None
        first = ""
        for name, axes in self.variable_axes.items():
            if axes.time is None:
                continue
            where = f"{axes.time_coordinate or axes.time} of {name} in {self.where}"
            if axes.time_coordinate is None:
                raise DataError(f"{where} has no dates: add a time coordinate")
            found = read_times(self.dataset[name][axes.time_coordinate].values, where)
            if not len(found):
                raise DataError(f"{name} of {self.where} has no time at all")
            leads = None
            if axes.lead_coordinate is not None:
                coordinate = self.dataset[name][axes.lead_coordinate]
                leads = read_lead_times(coordinate.values, str(coordinate.attrs.get("units", "")), where, found)
            if labels is None:
                labels, lead_times, first = found, leads, name
            elif not (
                np.array_equal(found.seconds, labels.seconds)
                and found.calendar == labels.calendar
                and np.array_equal(leads, lead_times)  # type: ignore[arg-type]
            ):
                raise DataError(
                    f"{first} and {name} of {self.where} have different times: give them in separate data sets, which "
                    "are aligned by time, or leave one out"
                )
        return labels, lead_times


def _in_order_of(fields: np.ndarray, positions: np.ndarray, num_leads: int, *, has_leads: bool) -> np.ndarray:
    """Fields of the positions, from those of each time, and lead time, once."""
    places = np.unique(positions // num_leads, return_inverse=True)[1]
    if has_leads:
        leads, lead_places = np.unique(positions % num_leads, return_inverse=True)
        places = places * len(leads) + lead_places
    # A copy is spared where there is nothing to change.
    return fields if np.array_equal(places, np.arange(len(fields))) else fields[places]


def field_names(dataset: xr.Dataset) -> list[str]:
    """Names of the variables that may be fields: those with numbers along two dimensions at least, without bounds."""
    return [
        str(name) for name, array in dataset.data_vars.items() if not _reason(array) and not _is_bounds(name, array)
    ]


def _reason(array: xr.DataArray) -> str:
    """Why a variable is not a field; empty if it may be one."""
    kinds = {"O": "text", "U": "text", "S": "text", "c": "complex numbers", "m": "time differences", "M": "dates"}
    if array.dtype.kind in kinds:
        return f"holds {kinds[array.dtype.kind]}"
    return "" if array.ndim >= 2 else f"depends on {array.dims[0]} only" if array.ndim else "is a single number"


def _is_bounds(name: object, array: xr.DataArray) -> bool:
    texts = {str(each.attrs.get("bounds", each.encoding.get("bounds"))) for each in array.coords.values()}
    lowered = str(name).lower()
    return str(name) in texts or lowered.startswith(("bounds_", "bnds_")) or lowered.endswith(("_bnds", "_bounds"))


def left_out(dataset: xr.Dataset, where: str, series: Sequence[str]) -> tuple[str, ...]:
    """A line that names variables that are neither fields nor series; those of a single number map the grid, mostly."""
    found = {str(name): _reason(array) for name, array in dataset.data_vars.items() if array.ndim}
    named = [
        f"{name} ({reason})"
        for name, reason in found.items()
        if reason and name not in series and not _is_bounds(name, dataset[name])
    ]
    more = f" and {len(named) - 8} more" if len(named) > 8 else ""
    return (f"variables of {where} that are left out: {', '.join(named[:8])}{more}",) if named else ()


def series_names(dataset: xr.Dataset) -> list[str]:
    """Names of the variables of time alone: floating numbers along one dimension that has dates."""
    return [
        str(name)
        for name, array in dataset.data_vars.items()
        if array.dtype.kind == "f"
        and _is_series(dataset, str(name))
        and not _is_bounds(name, array)
        and any(each.dims == array.dims and each.dtype.kind in "MO" for each in array.coords.values())
    ]


def _is_series(dataset: xr.Dataset, name: str) -> bool:
    return name in dataset.data_vars and dataset[name].ndim == 1 and dataset[name].dtype.kind in "iufb"


def _describe(array: xr.DataArray, *, is_static: bool) -> Channel:
    units, standard_name = (str(array.attrs.get(each, "")) for each in ("units", "standard_name"))
    return Channel(str(array.name), units, standard_name=standard_name, is_static=is_static)


def _check_field(dataset: xr.Dataset, name: str, where: str) -> None:
    if name not in dataset.data_vars:
        raise DataError(f"{where} has no variable {name!r}; {suggest(name, map(str, dataset.data_vars))}")
    if reason := _reason(dataset[name]):
        can_repeat = dataset[name].ndim and dataset[name].dtype.kind in "iufb"
        remedy = (
            f"repeat it at each pixel, by dataset[{name!r}].broadcast_like(field)" if can_repeat else "leave it out"
        )
        raise DataError(f"{name} of {where} {reason}, but inputs and targets are fields on a grid: {remedy}")


def valid_range(array: xr.DataArray) -> tuple[float, float] | None:
    """The range of values that are not missing by CF's `valid_range`, `valid_min` and `valid_max`; None without one."""
    if "valid_range" in array.encoding:
        return array.encoding["valid_range"]
    attributes = array.attrs
    ends = [attributes.get("valid_min", -np.inf), attributes.get("valid_max", np.inf)]
    bounds = np.asarray(attributes.get("valid_range", ends)).ravel()
    if bounds.dtype.kind not in "iuf" or len(bounds) != 2 or "_Unsigned" in (*attributes, *array.encoding):
        return None
    low, high = map(float, bounds)
    given = [attributes[name] for name in ("valid_range", "valid_min", "valid_max") if name in attributes]
    if all(np.asarray(each).dtype.kind in "iu" for each in given):
        # Bounds of the type of packed values are packed, too.
        scale, offset = float(array.encoding.get("scale_factor", 1.0)), float(array.encoding.get("add_offset", 0.0))
        low, high = sorted((low * scale + offset, high * scale + offset))
    return (low, high) if low < high and np.isfinite([low, high]).any() else None


def as_slice(positions: np.ndarray) -> slice | np.ndarray:
    """A slice where the positions are contiguous, which all readers read fastest."""
    steps = set(np.diff(positions).tolist())
    if len(positions) and steps <= {1}:
        return slice(int(positions[0]), int(positions[-1]) + 1)
    if steps == {-1}:
        return slice(int(positions[0]), int(positions[-1]) - 1 if positions[-1] else None, -1)
    return positions
