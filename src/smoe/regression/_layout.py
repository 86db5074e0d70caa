"""What predictions look like: names, dimensions, coordinates, units and attributes of the targets."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from smoe._plain import from_plain
from smoe.gridded import FieldSource, MonthTimes, Orientation, find_month_times, import_xarray
from smoe.meshes import DESCRIPTION, ROW_COORDINATES, is_row_of_nodes, restored_variables, with_mesh

if TYPE_CHECKING:
    import xarray as xr

Described = tuple[tuple[str, ...], np.ndarray, dict[str, Any]]
"""Dimensions, values and attributes of an array."""

_Attributes = dict[str, str | int | float | list[Any]]


@dataclass(frozen=True)
class _Words:
    """What JSON keeps of an `OutputLayout`."""

    variables: tuple[tuple[str, int, tuple[str, ...], _Attributes], ...]
    coordinates: dict[str, list[Any]]
    mappings: dict[str, _Attributes]
    time: tuple[str, _Attributes]
    attributes: _Attributes
    is_array: bool
    mesh_dimension: str | None
    mesh: dict[str, list[Any]] | None
    months: MonthTimes | None


@dataclass(frozen=True)
class _DescribedWords:
    """What JSON keeps of a described array; None for numbers, which stand beside it."""

    dims: tuple[str, ...]
    text: list[Any] | str | None
    attributes: _Attributes


# What holds for the targets of the training only, and attributes that name variables that are not written.
_OF_THE_TARGETS = ("forecast_period", "forecast_reference_time")
_DROPPED = ("bounds", "ancillary_variables", "cell_measures", "coordinates", "actual_range", "valid_range", "valid_min",
            "valid_max")  # fmt: skip


@dataclass(frozen=True)
class OutputLayout:
    """Layout of predictions, from the targets of the training.

    Attributes:
        variables: Name, number of levels (0 for none), dimensions without time, and attributes of each target.
        coordinates: Dimensions, values and attributes of each coordinate that does not depend on time.
        mappings: Attributes of grid mapping variables.
        time: Name of the time dimension and attributes of its coordinate.
        orientation: Order of rows and columns.
        attributes: Attributes of the data set.
        is_array: Whether a single array was given.
        mesh: Dimension of the nodes in the file of the targets, and the variables of their mesh, as for `coordinates`;
            None for a grid.
        months: Where in its month each time of monthly targets lies; None for others.
    """

    variables: tuple[tuple[str, int, tuple[str, ...], dict[str, Any]], ...]
    coordinates: dict[str, Described]
    mappings: dict[str, dict[str, Any]]
    time: tuple[str, dict[str, Any]]
    orientation: Orientation
    attributes: dict[str, Any]
    is_array: bool
    mesh: tuple[str, dict[str, Described]] | None = None
    months: MonthTimes | None = None

    @classmethod
    def of(cls, source: FieldSource, *, is_array: bool) -> OutputLayout:
        """The layout of a source of targets."""
        dataset = source.dataset
        variables, mappings, names = [], {}, []
        for name, axes in source.variable_axes.items():
            dims = tuple(dim for dim in (axes.level, axes.row, axes.column) if dim is not None)
            levels = 0 if axes.level is None else dataset.sizes[axes.level]
            variables.append((name, levels, dims, plain_attributes(dataset[name].attrs)))
            mapping = dataset[name].attrs.get("grid_mapping") or dataset[name].encoding.get("grid_mapping")
            if mapping in dataset.variables:
                mappings[str(mapping)] = plain_attributes(dataset[mapping].attrs)
                variables[-1][3].setdefault("grid_mapping", str(mapping))
            names += [str(each) for each in dataset[name].coords]
        mesh = _mesh_of(dataset) if is_row_of_nodes(dataset) else None
        coordinates: dict[str, Described] = {}
        for name in dict.fromkeys(names):
            array = dataset[name]
            if source.axes.time in array.dims or array.dtype.kind not in "iufUSb" or name in mappings:
                continue
            if mesh is not None and (name in mesh[1] or name in ROW_COORDINATES):
                continue
            if array.attrs.get("standard_name") in _OF_THE_TARGETS:
                continue
            dims = tuple(str(dim) for dim in array.dims)
            coordinates[name] = (dims, np.asarray(array.values), plain_attributes(array.attrs))
        assert source.axes.time is not None
        time = source.axes.time_coordinate or source.axes.time
        first = next(iter(source.variable_axes))
        return cls(
            tuple(variables),
            coordinates,
            mappings,
            (source.axes.time, plain_attributes(dataset[time].attrs)),
            source.orientation_of(first),
            plain_attributes(dataset.attrs),
            is_array,
            mesh,
            None if source.labels is None else find_month_times(source.labels),
        )

    def build(
        self,
        values: np.ndarray,
        sample_coordinates: dict[str, Described],
        sample_dims: tuple[str, ...],
        sample_shape: tuple[int, ...],
        *,
        quantiles: tuple[float, ...] | None = None,
        has_spread: bool = False,
    ) -> xr.Dataset:
        """Makes a data set of predictions."""
        xr = import_xarray()
        turned = self.orientation.turn_back(values)
        arrays: dict[str, Any] = {}
        channel = 0
        for name, num_levels, dims, attributes in self.variables:
            part = turned[:, channel : channel + max(num_levels, 1)]
            channel += max(num_levels, 1)
            attributes = {key: value for key, value in attributes.items() if key not in _DROPPED}
            if has_spread:
                arrays[name] = self._variable(part[:, :, 0], sample_dims, sample_shape, num_levels, dims, attributes)
                spread = {"long_name": f"standard deviation of {name}", "units": attributes.get("units", "")}
                spread |= {"grid_mapping": attributes["grid_mapping"]} if "grid_mapping" in attributes else {}
                arrays[f"{name}_spread"] = self._variable(
                    part[:, :, 1], sample_dims, sample_shape, num_levels, dims, spread
                )
            elif quantiles is not None:
                stacked = [
                    self._variable(part[:, :, number], sample_dims, sample_shape, num_levels, dims, attributes)[1]
                    for number in range(len(quantiles))
                ]
                at = len(sample_dims)
                arrays[name] = ((*sample_dims, "quantile", *dims), np.stack(stacked, axis=at), attributes)
            else:
                arrays[name] = self._variable(part[:, :, 0], sample_dims, sample_shape, num_levels, dims, attributes)
        for name, attributes in self.mappings.items():
            arrays[name] = ((), np.int32(0), attributes)
        coordinates: dict[str, Any] = {
            name: (dims, array, {key: value for key, value in attributes.items() if key not in _DROPPED})
            for name, (dims, array, attributes) in self.coordinates.items()
        }
        if quantiles is not None:
            coordinates["quantile"] = (("quantile",), np.asarray(quantiles), {"long_name": "quantile", "units": "1"})
        dataset = xr.Dataset(arrays, coords=coordinates | sample_coordinates, attrs=dict(self.attributes))
        return dataset if self.mesh is None else with_mesh(dataset, *self.mesh)

    @staticmethod
    def _variable(
        values: np.ndarray,
        sample_dims: tuple[str, ...],
        sample_shape: tuple[int, ...],
        num_levels: int,
        dims: tuple[str, ...],
        attributes: dict[str, Any],
    ) -> Described:
        shape = (*sample_shape, *((num_levels,) if num_levels else ()), *values.shape[-2:])
        return (*sample_dims, *dims), values.reshape(shape), dict(attributes)

    def to_plain(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """What JSON keeps, and the arrays beside it."""
        coordinates, arrays = _store("layout.", self.coordinates)
        arrays["layout.row_order"] = self.orientation.row_order
        arrays["layout.column_order"] = self.orientation.column_order
        plain = {
            "variables": [[name, levels, list(dims), attributes] for name, levels, dims, attributes in self.variables],
            "coordinates": coordinates,
            "mappings": self.mappings,
            "time": list(self.time),
            "attributes": self.attributes,
            "is_array": self.is_array,
            "months": None if self.months is None else asdict(self.months),
        }
        plain["mesh_dimension"] = plain["mesh"] = None
        if self.mesh is not None:
            plain["mesh_dimension"] = self.mesh[0]
            plain["mesh"], mesh_arrays = _store("layout.mesh.", self.mesh[1])
            arrays |= mesh_arrays
        return plain, arrays

    @classmethod
    def from_plain(cls, plain: dict[str, Any], arrays: dict[str, np.ndarray]) -> OutputLayout:
        """The inverse of `to_plain`."""
        words = from_plain(_Words, plain, "layout")
        mesh = None
        if words.mesh is not None and words.mesh_dimension is not None:
            mesh = words.mesh_dimension, _restore("layout.mesh.", words.mesh, arrays)
        return cls(
            words.variables,
            _restore("layout.", words.coordinates, arrays),
            words.mappings,
            words.time,
            Orientation(arrays["layout.row_order"], arrays["layout.column_order"]),
            words.attributes,
            words.is_array,
            mesh,
            words.months,
        )


def _mesh_of(row: Any) -> tuple[str, dict[str, Described]]:
    variables = {
        name: (tuple(map(str, variable.dims)), np.asarray(variable.values), plain_attributes(variable.attrs))
        for name, variable in restored_variables(row).items()
    }
    return str(row[DESCRIPTION].attrs["dimension"]), variables


def _store(prefix: str, variables: dict[str, Described]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What JSON keeps of described arrays, texts among it; and their numbers by names with a prefix."""
    words = {
        name: [list(dims), None if values.dtype.kind in "iuf" else values.astype(str).tolist(), attributes]
        for name, (dims, values, attributes) in variables.items()
    }
    arrays = {prefix + name: np.atleast_1d(variables[name][1]) for name, (_, text, _) in words.items() if text is None}
    return words, arrays


def _restore(prefix: str, words: dict[str, Any], arrays: dict[str, np.ndarray]) -> dict[str, Described]:
    """The inverse of `_store`."""
    found: dict[str, Described] = {}
    for name, (dims, text, attributes) in words.items():
        described = {"dims": dims, "text": text, "attributes": attributes}
        each = from_plain(_DescribedWords, described, f"{prefix}{name}")
        array = arrays[prefix + name] if text is None else np.asarray(text)
        found[name] = (each.dims, array if dims or text is not None else array.reshape(()), each.attributes)
    return found


def plain_attributes(attributes: Any) -> dict[str, Any]:
    """Attributes as plain values; arrays become lists. Those that JSON cannot hold, such as NaN, are left out."""
    plain = {}
    for key, value in dict(attributes).items():
        if isinstance(value, np.generic):
            value = value.item()
        elif isinstance(value, np.ndarray):
            value = value.tolist()
        if isinstance(value, (str, int, float, list)) and not isinstance(value, bool):
            plain[str(key)] = value
    return {key: value for key, value in plain.items() if not isinstance(value, float) or np.isfinite(value)}
