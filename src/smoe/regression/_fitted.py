"""All that a fitted regressor consists of, what its predictions look like, and its two files."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from smoe._files import FileLock, LockedError, reason_not_to_write, write_atomically
from smoe._integrity import checksum
from smoe._plain import RecipeError, from_plain, to_plain
from smoe.diagnostics import fixed_choices, fixed_gates
from smoe.errors import DataError, printable, suggest
from smoe.gridded import (
    Channel,
    FieldSource,
    HorizontalGrid,
    MonthTimes,
    NodeGrid,
    OpenOptions,
    Orientation,
    Period,
    are_same_units,
    find_month_times,
    import_xarray,
    open_fields,
)
from smoe.meshes import (
    DESCRIPTION,
    ROW_COORDINATES,
    Mesh,
    mesh_arrays,
    mesh_from_files,
    mesh_words,
    restored_variables,
    with_mesh,
)
from smoe.regression._ladder import CLIMATOLOGY, MEAN_ERROR, Ladder, Spread, num_channels
from smoe.regression._nets import (
    NetShape,
    Regression,
    count_parameters,
    count_shared_parameters,
    make_net,
    make_plain_net,
    wrap_own_net,
)
from smoe.regression._options import MACHINE_OPTIONS, SIMPLE, RegressorOptions
from smoe.regression._preparation import Statistics, functions_of, transformed
from smoe.regression._trees import Trees
from smoe.version import __version__

if TYPE_CHECKING:
    import xarray as xr


Attributes = dict[str, str | int | float | list[Any]]
Described = tuple[tuple[str, ...], np.ndarray, Attributes]
"""Dimensions, values and attributes of an array."""

# What holds for the targets of the training only, and attributes that name variables that are not written.
_OF_THE_TARGETS = ("forecast_period", "forecast_reference_time")
_DROPPED = ("bounds", "ancillary_variables", "cell_measures", "coordinates", "actual_range", "valid_range", "valid_min",
            "valid_max")  # fmt: skip


@dataclass(frozen=True)
class OutputLayout:
    """Layout of predictions, from the targets of the training."""

    # name, number of levels (0 for none), dimensions without time, and attributes of each target
    variables: tuple[tuple[str, int, tuple[str, ...], Attributes], ...]
    # dimensions, values and attributes of each coordinate that does not depend on time
    coordinates: dict[str, Described]
    mappings: dict[str, Attributes]  # attributes of grid mapping variables
    time: tuple[str, Attributes]  # name of the time dimension and attributes of its coordinate
    orientation: Orientation  # order of rows and columns
    attributes: Attributes  # attributes of the data set
    is_array: bool  # whether a single array was given
    # dimension of the nodes in the file of the targets, and the variables of their mesh, as for `coordinates`;
    # None for a grid
    mesh: tuple[str, dict[str, Described]] | None = None
    months: MonthTimes | None = None  # where in its month each time of monthly targets lies; None for others

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
        mesh = _mesh_of(dataset) if DESCRIPTION in dataset.coords else None
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
            source.orientations[first],
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
        options: RegressorOptions,
    ) -> xr.Dataset:
        """Makes a data set of predictions `(N, K, n, H, W)`."""
        xr = import_xarray()
        turned = self.orientation.turn_back(values)
        grid, arrays, channel = turned.shape[-2:], {}, 0
        coordinates: dict[str, Any] = {
            name: (dims, array, {key: value for key, value in attributes.items() if key not in _DROPPED})
            for name, (dims, array, attributes) in self.coordinates.items()
        }
        for name, num_levels, dims, attributes in self.variables:
            part = turned[:, channel : channel + max(num_levels, 1)].swapaxes(1, 2)
            channel += max(num_levels, 1)
            attributes = {key: value for key, value in attributes.items() if key not in _DROPPED}
            shape = ((num_levels,) if num_levels else ()) + grid
            if options.objective == "quantiles":
                values = part.reshape(*sample_shape, part.shape[1], *shape)
                arrays[name] = ((*sample_dims, "quantile", *dims), values, attributes)
                levels = np.asarray(options.quantiles)
                coordinates["quantile"] = (("quantile",), levels, {"long_name": "quantile", "units": "1"})
                continue
            arrays[name] = ((*sample_dims, *dims), part[:, 0].reshape(*sample_shape, *shape), attributes)
            if options.objective == "gaussian":
                spread = {"long_name": f"standard deviation of {name}", "units": attributes.get("units", "")}
                spread |= {"grid_mapping": attributes["grid_mapping"]} if "grid_mapping" in attributes else {}
                arrays[f"{name}_spread"] = ((*sample_dims, *dims), part[:, 1].reshape(*sample_shape, *shape), spread)
        arrays |= {name: ((), np.int32(0), attributes) for name, attributes in self.mappings.items()}
        dataset = xr.Dataset(arrays, coords=coordinates | sample_coordinates, attrs=dict(self.attributes))
        return dataset if self.mesh is None else with_mesh(dataset, *self.mesh)


def _mesh_of(row: Any) -> tuple[str, dict[str, Described]]:
    variables = {
        name: (tuple(map(str, variable.dims)), np.asarray(variable.values), plain_attributes(variable.attrs))
        for name, variable in restored_variables(row).items()
    }
    return str(row[DESCRIPTION].attrs["dimension"]), variables


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


def pixel_weights(grid: HorizontalGrid, options: RegressorOptions) -> np.ndarray:
    """Weight of each pixel in the objective and the scores, `(H, W)`."""
    weights = grid.area_weights() if options.area_weights else None
    return np.ones(grid.shape) if weights is None else weights


@dataclass(frozen=True, kw_only=True)
class Learned:
    """What a fitted regressor consists of beside its nets."""

    options: RegressorOptions  # options that it was fitted with
    ladder: Ladder  # simple models
    base: str  # the rung of it that the nets correct
    shares: dict[str, np.ndarray]  # share of each net in what predicts, `(K,)`; the base has the rest
    spread: Spread  # how the errors of the base are distributed
    # objective in the validation part, as a share of the base's, of the nets and rungs
    validation: dict[str, float | None]
    verdict: str  # what predicts, and what the nets add to the simple models, in one line
    shape: NetShape  # what the nets are made for
    has_own_net: bool  # whether the net is a module of the user's own
    input_channels: tuple[Channel, ...]  # channels of the inputs, static ones among them
    target_channels: tuple[Channel, ...]  # channels of the targets
    grid: HorizontalGrid | NodeGrid  # grid of both
    layout: OutputLayout  # layout of predictions
    static: np.ndarray  # values of the static inputs, `(C', H, W)`
    input_mask: np.ndarray  # pixels where inputs had no value at any time, `(C, H, W)`
    lead_scale: float | None  # seconds that the channel of lead times is divided by; None without such a channel
    calendar: str  # calendar of the times
    periods: dict[str, str]  # periods of the splits, as text
    bounds: dict[str, tuple[int, int]]  # first second of each of them, and the first one after it
    records: dict[str, list[dict[str, Any]]]  # records of the training of `model` and `plain`, epoch by epoch
    trained: tuple[int, int]  # first second of the times of the training samples, and the first one after them
    samples: dict[str, int]  # number of samples of each split, and of those that were left out, by the reason
    notes: tuple[str, ...]  # what was noted of the data of the fit, and what looked wrong in them
    # what must be said if a simple prediction is better in the validation period; None if none is
    weakness: str | None = None


@dataclass(frozen=True, kw_only=True)
class Fitted(Learned):
    """A fitted regressor."""

    net: Regression  # trained SMoE net, or the user's own net; for a simple model, one that adds nothing
    plain: Regression | None = None  # plain net of the same size, if one was fitted beside it
    # plain net of the same size that does not know the simple models, if one was fitted
    alone: Regression | None = None
    mesh: Mesh | None = None  # mesh that the nodes of the grid belong to; None for a grid
    trees: Trees | None = None  # boosted trees, if LightGBM is installed; not in files

    @property
    def dynamic_variables(self) -> list[str]:
        """Names of the input variables that depend on time."""
        return list(dict.fromkeys(channel.variable for channel in self.input_channels if not channel.is_static))

    @property
    def transformed_inputs(self) -> list[str]:
        """Names of the input variables that targets continue, which are transformed as they are."""
        return [self.input_channels[number].variable for number in self.statistics.reference if number >= 0]

    def inverse(self, values: np.ndarray) -> np.ndarray:
        """Values in the units of the data."""
        name = self.options.transform
        return values if name is None else functions_of(name)[1](values).astype(np.float32)

    @property
    def pixel_weights(self) -> np.ndarray:
        """Weight of each pixel in the scores, `(H, W)`."""
        return pixel_weights(self.grid, self.options)

    @property
    def nets(self) -> dict[str, Regression]:
        """The nets that were trained."""
        found = {"net": self.net, "plain": self.plain, "alone": self.alone}
        return {name: net for name, net in found.items() if net is not None and name in self.shares}

    @property
    def kept(self) -> str:
        """The net with the largest share in what predicts, or the ladder."""
        best = max(self.shares, key=lambda name: float(self.shares[name].sum()), default="ladder")
        return best if best in self.shares and self.shares[best].any() else "ladder"

    @property
    def keeps_plain(self) -> bool:
        """Whether a plain net predicts more than the SMoE net."""
        return self.kept in ("plain", "alone")

    @property
    def predictor(self) -> Regression:
        """The net with the largest share in what predicts."""
        return self.nets.get(self.kept, self.net)

    @property
    def simple_base(self) -> str:
        """What the plain net that does not know the ladder starts from."""
        return MEAN_ERROR if MEAN_ERROR in self.ladder.rungs else CLIMATOLOGY

    def spread_of(self, rung: str) -> np.ndarray:
        """Standard deviation of the errors of a rung at times that were not fitted, `(K, H, W)`."""
        return self.ladder.spreads[rung].reshape(self.spread.pixels.shape).astype(np.float32)

    def base_of(self, name: str) -> str:
        """The rung that a net corrects."""
        return self.simple_base if name == "alone" else self.base

    @property
    def statistics(self) -> Statistics:
        """Statistics of the training part."""
        return self.ladder.statistics

    @property
    def net_kind(self) -> str:
        """What `net` is called beside the plain net."""
        return "own net" if self.has_own_net else "SMoE net"

    def describe(self) -> str:
        """Net, targets and grid in one line."""
        plain = f"plain {self.options.net}"
        kinds = {"net": "own net" if self.has_own_net else self.options.net, "plain": plain, "alone": f"{plain} alone"}
        used = [
            f"{kinds[name]} of {count_parameters(net)} parameters"
            for name, net in self.nets.items()
            if self.shares[name].any()
        ]
        what = f"{' + '.join(used)} on {self.base}" if used else self.base
        targets = ", ".join(channel.name for channel in self.target_channels)
        lead = f", lead {self.options.lead}" if self.options.lead else ""
        return printable(f"{what} for {targets}{lead} on {self.grid.describe()}")

    def period_of(self, which: str) -> Period:
        """Period of a split, such as `test`."""
        if which not in self.bounds:
            raise DataError(f"the model has no period {which!r}; {suggest(which, self.bounds)}")
        return Period(*self.bounds[which], self.calendar)

    def worse_than_plain(self) -> str | None:
        """A warning if the plain net of the same size is better on the validation part, with what becomes of it."""
        ours, plain = self.validation.get("net"), self.validation.get("plain")
        if ours is None or plain is None or not ours > plain:
            return None
        reason = "the location may not matter for these data, or the training needs more samples or epochs"
        values = f"objective {plain:.4g} of the plain net, {ours:.4g} of the {self.net_kind}, 1 of {self.base}"
        if self.kept == "plain":
            return f"the plain net predicts, it was better on validation than the {self.net_kind} ({values}): {reason}"
        return f"the model was worse on validation than the plain net of the same size ({values}): {reason}"

    def remarks(self) -> tuple[str, ...]:
        """What the scores must say of the model beside the plain net and simple predictions."""
        plain = self.worse_than_plain() if self.kept in ("net", "plain") else None
        if self.plain is None and self.options.net not in SIMPLE:
            plain = (
                "no plain net was fitted to compare with, so whether the location matters for these data is not known"
            )
        return tuple(each for each in (self.verdict, plain, self.weakness) if each)


def best_validation(records: Sequence[Mapping[str, Any]]) -> float | None:
    """Lowest objective of the validation part in the records of a training; None if it was never finite."""
    values = [record.get("validation/loss") for record in records]
    finite = [value for value in values if isinstance(value, (int, float)) and np.isfinite(value)]
    return min(finite) if finite else None


def open_inputs(fitted: Fitted, x: Any, open_options: OpenOptions | None = None) -> FieldSource:
    """Opens new inputs and compares them with those of the training."""
    variables = list(dict.fromkeys(channel.variable for channel in fitted.input_channels))
    dataset = open_fields(x, "inputs", fitted.options.location, variables, open_options)
    known = [str(name) for name in dataset.data_vars]
    needed = fitted.dynamic_variables
    for name in needed:
        if name not in known:
            targets = {channel.variable for channel in fitted.target_channels}
            hint = "; are these the targets?" if targets & set(known) and not set(needed) & set(known) else ""
            raise DataError(f"the inputs have no variable {name!r}; {suggest(name, known)}{hint}")
    expected = [channel for channel in fitted.input_channels if not channel.is_static]
    source = FieldSource(
        transformed(dataset, fitted.transformed_inputs, fitted.options.transform), needed, "inputs", with_series=True,
        like=expected,
    )  # fmt: skip
    for ours, theirs in zip(expected, source.channels, strict=False):
        if ours.name != theirs.name:
            raise DataError(f"the inputs have {theirs.name} where the model was fitted with {ours.name}")
        if not are_same_units(ours.units, theirs.units):
            raise DataError(
                f"{ours.name} is in {theirs.units or '(no units)'!r}, but the model was fitted in "
                f"{ours.units or '(no units)'!r}: convert it"
            )
    if len(source.channels) != len(expected):
        raise DataError(
            f"the inputs have {len(source.channels)} channels ({', '.join(c.name for c in source.channels)}), the "
            f"model was fitted with {len(expected)} ({', '.join(c.name for c in expected)})"
        )
    difference = source.grid.difference(fitted.grid)
    if difference is not None:
        if not fitted.options.regrid:
            raise DataError(
                f"the inputs are on another grid than the model (hash {source.grid.hash} against {fitted.grid.hash}), "
                f"{difference}; {fitted.grid.remedy}"
            )
        source.regrid_to(fitted.grid)
    if source.labels is not None and source.labels.calendar != fitted.calendar:
        raise DataError(f"the inputs are in the calendar {source.labels.calendar}, the model in {fitted.calendar}")
    if fitted.lead_scale is not None and source.lead_times is None:
        raise DataError("the model was fitted with forecasts of several lead times; the inputs have none")
    _check_static(fitted, dataset)
    return source


def _check_static(fitted: Fitted, dataset: xr.Dataset) -> None:
    """Refuses static inputs that are not those that the model keeps, which it predicts from in any case."""
    kept = [channel for channel in fitted.input_channels if channel.is_static]
    for name in dict.fromkeys(channel.variable for channel in kept):
        if name not in dataset.data_vars:
            continue
        source = FieldSource(dataset, [name], "inputs")
        if source.labels is not None or source.grid.difference(fitted.grid) is not None:
            continue
        ours = fitted.static[[number for number, channel in enumerate(kept) if channel.variable == name]]
        theirs = source.read(np.zeros(1, np.int64))[0]
        # Files round their values differently.
        margin = 1e-4 * float(np.nanmax(np.abs(ours)))
        if ours.shape != theirs.shape or not np.allclose(ours, theirs, rtol=0.0, atol=margin, equal_nan=True):
            raise DataError(
                f"{name} of the inputs is not the field that the model was fitted with, which it keeps: leave it out, "
                "or fit a model for the new one"
            )


def run_net(net: Regression, inputs: np.ndarray) -> np.ndarray:
    """Outputs of a net for normalised inputs `(N, C, H, W)`, on the net's device."""
    device = next((parameter.device for parameter in net.parameters()), torch.device("cpu"))
    net.eval()
    with torch.no_grad():
        return net(torch.from_numpy(inputs).to(device)).float().cpu().numpy()


def routing_map(fitted: Fitted, gate: str | int = 0, slot: int | None = 0) -> xr.DataArray:
    """Numbers of the experts at each pixel, as `GridRegressor.routing_map` says."""
    xr = import_xarray()
    choices, gates = fixed_choices(fitted.net), fixed_gates(fitted.net)
    if not choices:
        raise DataError("the net has no gate whose choices are the same for all inputs")
    names = list(choices)
    if isinstance(gate, int):
        if not -len(names) <= gate < len(names):
            raise DataError(f"the net has {len(names)} gates, from 0 on: {', '.join(names)}; got {gate}")
        name = names[gate]
    else:
        name = gate
        if name not in choices:
            raise DataError(f"the net has no gate {name!r}; {suggest(name, names)}")
    found = np.asarray(choices[name])
    if fitted.grid.kind == "mesh":
        # Nodes are one row.
        found = found[:, None]
    rows, columns = fitted.grid.shape
    if found.shape[1] < rows or found.shape[2] < columns:
        raise DataError(
            f"the gate {name} has a grid of {found.shape[1]} x {found.shape[2]}, the data have {rows} x {columns}: "
            f"name another of {', '.join(names)}, or draw it by smoe.plot_routing"
        )
    # The grid of a net may be padded.
    experts = fitted.layout.orientation.turn_back(found[:, :rows, :columns]).astype(np.int32)
    if slot is not None and not 0 <= slot < len(experts):
        raise DataError(f"a pixel selects {len(experts)} experts at {name}: slot must be in [0, {len(experts) - 1}]")
    values = experts if slot is None else experts[slot]
    used = np.unique(values)
    attributes = {
        "long_name": "selected expert",
        "flag_values": used,
        "flag_meanings": " ".join(f"expert_{number}" for number in used),
        "num_experts": gates[name].num_experts,
        "gate": name,
    }
    if fitted.kept != "net":
        what = "the plain net predicts" if fitted.keeps_plain else f"{fitted.base} predicts"
        attributes["comment"] = f"{what}, which was better on validation; this is the routing of the {fitted.net_kind}"
    row, column = fitted.layout.variables[0][2][-2:]
    coordinates: dict[str, Any] = {
        key: (dims, array, attrs)
        for key, (dims, array, attrs) in fitted.layout.coordinates.items()
        if set(dims) <= {row, column}
    }
    dims = (row, column) if slot is not None else ("slot", row, column)
    found_map = xr.DataArray(values, dims=dims, coords=coordinates, attrs=attributes, name="routing")
    if fitted.layout.mesh is None:
        return found_map
    return with_mesh(found_map.to_dataset(), *fitted.layout.mesh)["routing"]


def grid_coordinates(fitted: Fitted) -> dict[str, np.ndarray] | None:
    """Coordinates of the rows and columns of a model's grid for pictures; None where a net has another grid."""
    grid = fitted.grid
    shapes = {tuple(gate.shape[1:]) for gate in fixed_choices(fitted.net).values()}
    if grid.kind in ("indexed", "curvilinear", "mesh") or grid.shape not in shapes:
        return None
    names = ("latitude", "longitude") if grid.kind == "latitude-longitude" else fitted.layout.variables[0][2][-2:]
    return dict(zip(names, (grid.rows, grid.columns), strict=True))


FORMAT, VERSION = "smoe-grid-regressor", 1
CONFIG, WEIGHTS = "config.json", "model.safetensors"
_NEW_WEIGHTS, _LOCK_FILE = "model.safetensors.new", ".save.lock"
_ARRAY, _TEXT = "@array", "@text"
# Of a config beside what was learned.
_BESIDE = ("format", "version", "smoe", "description", "kept", "remarks", "mesh", "weights_sha256")


def _detached(value: Any, place: str, arrays: dict[str, np.ndarray]) -> Any:
    """Plain values, from which arrays of numbers are taken out, to `arrays` by their places."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biuf":
            return {_TEXT: value.astype(str).tolist()}
        arrays[place] = value
        return {_ARRAY: place}
    if isinstance(value, dict):
        return {key: _detached(each, f"{place}.{key}" if place else key, arrays) for key, each in value.items()}
    if isinstance(value, list):
        return [_detached(each, f"{place}.{number}", arrays) for number, each in enumerate(value)]
    return value


def _attached(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """The inverse of `_detached`."""
    if isinstance(value, list):
        return [_attached(each, arrays) for each in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {_ARRAY}:
        return arrays[value[_ARRAY]]
    return np.asarray(value[_TEXT]) if value.keys() == {_TEXT} else {k: _attached(v, arrays) for k, v in value.items()}


def is_model_folder(path: Path) -> bool:
    """Whether a folder holds a fitted regressor."""
    try:
        return json.loads((path / CONFIG).read_text()).get("format") == FORMAT
    except (OSError, ValueError, AttributeError, RecursionError):
        return False


def save_model(fitted: Fitted, path: Path, *, overwrite: bool = False) -> None:
    """Writes a fitted regressor; a stop at any moment leaves a folder with the old model, the new one or none."""
    from safetensors.torch import save

    if path.exists() and not path.is_dir():
        raise DataError(f"{path} is a file: choose a folder for the model")
    if (path / CONFIG).exists() and not overwrite:
        raise DataError(f"{path} holds a model already: choose another folder, or set overwrite=True")
    arrays = {} if fitted.mesh is None else mesh_arrays(fitted.mesh)
    learned = Learned(**{each.name: getattr(fitted, each.name) for each in fields(Learned)})
    config = _detached(to_plain(learned), "", arrays)
    for name in MACHINE_OPTIONS:
        del config["options"][name]
    tensors = {name: torch.from_numpy(np.array(values)) for name, values in arrays.items()}
    for prefix, net in (("net", fitted.net), ("plain", fitted.plain), ("alone", fitted.alone)):
        if net is not None:
            state = net.state_dict()
            tensors |= {f"{prefix}.{name}": tensor.detach().cpu().clone() for name, tensor in state.items()}
    config |= {
        "format": FORMAT,
        "version": VERSION,
        "smoe": __version__,
        "description": fitted.describe(),
        "kept": fitted.kept,
        "remarks": list(fitted.remarks()),
        "mesh": None if fitted.mesh is None else mesh_words(fitted.mesh),
    }
    weights = save(tensors, {"format": "pt"})
    config = without_nan({**config, "weights_sha256": hashlib.sha256(weights).hexdigest()})
    text = json.dumps({**config, "checksum": checksum(config)}, indent=1, allow_nan=False) + "\n"
    try:
        path.mkdir(parents=True, exist_ok=True)
        with FileLock(path / _LOCK_FILE):
            write_atomically(path / _NEW_WEIGHTS, lambda file: file.write(weights))
            # From here on the folder holds the new model: until then it holds the old one.
            write_atomically(path / CONFIG, lambda file: file.write(text.encode()))
            os.replace(path / _NEW_WEIGHTS, path / WEIGHTS)
    except LockedError as error:
        raise DataError(f"{error.holder} saves a model in {path}: choose another folder") from error
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}") from error


def load_model(path: Path, own_net: nn.Module | None = None, transform: str | None = None) -> Fitted:
    """Reads what `save_model` wrote."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    config = _read_config(path)
    try:
        tensors = load(_read_weights(path, config["weights_sha256"]))
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path / WEIGHTS} is damaged: {error}") from error
    try:
        return _build(config, tensors, own_net, transform, path)
    except DataError:
        raise
    except RecipeError as error:
        raise DataError(f"{path / CONFIG} is not a model's config: {error}") from error
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        raise DataError(f"{path / CONFIG} is not a model's config: {type(error).__name__} {error}") from error
    except RuntimeError as error:
        raise DataError(f"the weights in {path} do not fit its config: {' '.join(str(error).split())}") from error


def _read_weights(path: Path, digest: str) -> bytes:
    """The weights that a config names by their SHA-256."""
    # A process that was killed while it saved has not renamed the weights.
    for name in (WEIGHTS, _NEW_WEIGHTS):
        if (path / name).is_file():
            weights = (path / name).read_bytes()
            if hashlib.sha256(weights).hexdigest() == digest:
                return weights
    if not (path / WEIGHTS).is_file():
        raise DataError(f"{path} has no {WEIGHTS}")
    raise DataError(f"{path / WEIGHTS} is damaged, or of another model: its checksum is not that of {CONFIG}")


def _read_config(path: Path) -> dict[str, Any]:
    place = path / CONFIG
    if not place.is_file():
        raise DataError(f"{path} is not a folder of a fitted model: it has no {CONFIG}")
    try:
        plain = json.loads(place.read_text())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place} is damaged: {error}") from error
    if not isinstance(plain, dict) or plain.get("format") != FORMAT:
        raise DataError(f"{place} is not a model's config")
    if plain.get("version") != VERSION:
        raise DataError(f"{place} has version {plain.get('version')} of the format, this smoe reads version {VERSION}")
    if plain.pop("checksum", None) != checksum(plain):
        raise DataError(f"{place} was edited or damaged: its checksum does not fit")
    options = plain.get("options")
    if isinstance(options, dict):
        if of_machine := sorted(set(MACHINE_OPTIONS) & set(options)):
            raise DataError(f"{place} sets {of_machine[0]}, which a model may not choose: remove it")
        defaults = asdict(RegressorOptions())
        plain["options"] = {**{name: defaults[name] for name in MACHINE_OPTIONS}, **options}
    if missing := [name for name in _BESIDE if name not in plain]:
        raise DataError(f"{place} is not a model's config: it lacks the field {missing[0]!r}")
    return plain


def _build(
    config: dict[str, Any], tensors: dict[str, torch.Tensor], own_net: nn.Module | None, transform: str | None,
    path: Path,
) -> Fitted:  # fmt: skip
    of_nets = ("net.", "plain.", "alone.")
    arrays = {name: tensor.numpy() for name, tensor in tensors.items() if not name.startswith(of_nets)}
    plain = _attached({name: value for name, value in config.items() if name not in _BESIDE}, arrays)
    learned: Learned = from_plain(Learned, plain)
    options, shape = learned.options, learned.shape
    if options.transform == "own":
        if transform is None:
            raise DataError(
                f"{path} was fitted with a transform of its user's own: give it as load(path, transform=(function, "
                "inverse))"
            )
        learned = replace(learned, options=replace(options, transform=transform))
    mesh = None if config["mesh"] is None else mesh_from_files(config["mesh"], arrays)
    if learned.has_own_net:
        if own_net is None:
            raise DataError(f"{path} was fitted with a net of its user's own: give it as load(path, net=...)")
        net = wrap_own_net(own_net, shape)
    else:
        _check_size(learned, _of(tensors, "net."))
        net = make_net(shape, options, mesh)
    net.load_state_dict(_of(tensors, "net."))
    nets: dict[str, Any] = {"net": net.eval()}
    for name in ("plain", "alone"):
        if state := _of(tensors, f"{name}."):
            nets[name] = make_plain_net(
                "resnet" if learned.has_own_net else options.net, shape, num_blocks=options.num_blocks,
                num_parameters=count_shared_parameters(net), mesh=mesh,
            )  # fmt: skip
            nets[name].load_state_dict(state)
            nets[name].eval()
    return Fitted(**vars(learned), **nets, mesh=mesh)


def _check_size(learned: Learned, state: dict[str, torch.Tensor]) -> None:
    """Refuses a config of a net that is larger than the weights beside it, before memory is taken for the net."""
    options, shape, num_values = learned.options, learned.shape, sum(tensor.numel() for tensor in state.values())
    # One filter of each expert, without its neighbours.
    width = shape.in_channels if options.net == "layer" else options.filters
    least = int(options.filters * options.num_experts) * width
    if options.net not in SIMPLE and (least > num_values or options.num_blocks > len(state)):
        raise RuntimeError(
            f"it describes {options.filters} filters of {options.num_experts:g} experts in {options.num_blocks} "
            f"blocks, but the weights are {num_values:,} numbers"
        )
    num_targets = len(learned.target_channels)
    num_inputs = num_channels(
        learned.ladder.design.anomalies.basis, len(learned.input_channels), num_targets,
        has_lead=learned.lead_scale is not None, is_own=learned.has_own_net,
    )  # fmt: skip
    expected = (num_inputs, num_targets * options.outputs_per_target, learned.input_mask.shape[1:])
    if (shape.in_channels, shape.out_channels, shape.grid) != expected or shape.num_targets != num_targets:
        raise RuntimeError(f"its net is {shape}, but inputs, targets and grid are {expected}")


def _of(tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def check_folder(path: Path) -> None:
    """Refuses a folder that cannot hold a new model, before anything is fitted."""
    if path.exists() and not path.is_dir():
        raise DataError(f"{path} is a file: choose a folder")
    if (path / CONFIG).exists():
        raise DataError(f"{path} holds a model already: choose another folder")
    if (reason := reason_not_to_write(path)) is not None:
        raise DataError(f"{path} cannot be written: {reason}")


def without_nan(value: Any) -> Any:
    """JSON has no NaN and no infinity; they are written as null."""
    if isinstance(value, dict):
        return {str(key): without_nan(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
