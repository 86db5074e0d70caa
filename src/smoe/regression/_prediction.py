"""Predictions of a fitted regressor for new inputs, with times and coordinates, and the map of its routing."""

from __future__ import annotations

import itertools
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from smoe.diagnostics import fixed_choices, fixed_gates
from smoe.errors import DataError, suggest
from smoe.gridded import (
    FieldSource,
    Lead,
    OpenOptions,
    are_same_units,
    block_rows,
    describe_position,
    import_xarray,
    open_fields,
    parse_lead,
)
from smoe.meshes import with_mesh
from smoe.regression._fitted import Fitted, Times, model_values
from smoe.regression._preparation import lead_channel, lead_name, memory_limit, transformed, without_lead

if TYPE_CHECKING:
    import xarray as xr

_BATCH = 32
# Standard deviations from the mean of the training beyond which inputs look like those of another unit.
_FAR = 8.0


def all_channels(fitted: Fitted, dynamic: np.ndarray) -> np.ndarray:
    """Inputs `(N, C, H, W)` of the channels that depend on time and those that the model keeps."""
    if not len(fitted.static):
        return dynamic
    is_static = np.asarray([channel.is_static for channel in fitted.input_channels])
    inputs = np.empty((len(dynamic), len(is_static), *dynamic.shape[2:]), np.float32)
    inputs[:, ~is_static], inputs[:, is_static] = dynamic, fitted.static
    return inputs


def find_gaps(fitted: Fitted, inputs: np.ndarray) -> np.ndarray:
    """Values `(N, C, H, W)` that are missing where the training had values, as booleans."""
    return np.isnan(inputs) & ~fitted.input_mask


def read_inputs(fitted: Fitted, source: FieldSource, positions: np.ndarray, *, allow_gaps: bool = False) -> np.ndarray:
    """Inputs of some positions, with gaps checked against the policy."""
    inputs = all_channels(fitted, source.read(positions))
    if np.isinf(inputs).any():
        row, channel = (int(place[0]) for place in np.nonzero(np.isinf(inputs).any(axis=(2, 3))))
        raise DataError(
            f"{fitted.input_channels[channel].name} has infinite values"
            f"{describe_position(source, int(positions[row]))}: correct them"
        )
    if fitted.options.missing != "fill":
        gaps = find_gaps(fitted, inputs)
        if gaps.any() and not allow_gaps:
            row, channel = (int(place[0]) for place in np.nonzero(gaps.any(axis=(2, 3))))
            raise DataError(
                f"{fitted.input_channels[channel].name} has {int(gaps[row, channel].sum())} missing values"
                f"{describe_position(source, int(positions[row]))} where the training had values: fill them, or fit "
                "the model with missing='fill'"
            )
    _warn_of_far_values(fitted, inputs)
    return inputs


def _warn_of_far_values(fitted: Fitted, inputs: np.ndarray) -> None:
    """Warns of inputs that are as a whole far from those of the training: they may be in other units."""
    means = fitted.statistics.normalise_inputs(inputs).mean(axis=(0, 2, 3))
    for channel, mean in zip(fitted.input_channels, means, strict=True):
        if abs(mean) > _FAR:
            warnings.warn(
                f"{channel.name} is on average {abs(mean):.0f} standard deviations from its mean in the training: are "
                f"its values in {channel.units or 'the same units'}?",
                stacklevel=2,
            )


def predict_lazily(fitted: Fitted, source: FieldSource) -> xr.Dataset:
    """Predictions for all times of a source as dask arrays: blocks of times are computed when they are needed."""
    import dask.array

    like = predict_positions(fitted, source, np.arange(source.num_leads))
    if source.labels is None:
        return like
    count = source.num_positions
    edges = [*range(0, count, _block_size(fitted, source)), count]
    # The function knows the model: of arguments dask would look for arrays of its own.
    predict: Any = dask.delayed(lambda first, last: predict_positions(fitted, source, np.arange(first, last)))
    blocks = [(predict(first, last), (last - first) // source.num_leads) for first, last in itertools.pairwise(edges)]
    coordinates, (dim, *_), _ = sample_coordinates(fitted, source, np.arange(count))
    coordinates |= _lead_coordinates(fitted, source, np.arange(count))

    def joined(name: str, array: xr.DataArray) -> Any:
        parts = [dask.array.from_delayed(each[name].values, (n, *array.shape[1:]), array.dtype) for each, n in blocks]
        return array.dims, dask.array.concatenate(parts), array.attrs

    fields = {name: joined(str(name), each) if dim in each.dims else each for name, each in like.data_vars.items()}
    steady = {name: each for name, each in like.coords.items() if dim not in each.dims}
    return import_xarray().Dataset(fields, steady | coordinates, like.attrs)


def _block_size(fitted: Fitted, source: FieldSource) -> int:
    """Positions that are read at once: whole chunks of the file and all lead times, as far as memory allows."""
    rows = block_rows(source, memory_limit(fitted.options) // 8)
    return max(source.num_leads, rows // source.num_leads * source.num_leads)


def predict_positions(fitted: Fitted, source: FieldSource, positions: np.ndarray) -> xr.Dataset:
    """Predictions for some times of a source."""
    times = sample_times(fitted, source, positions)
    parts = []
    step = _block_size(fitted, source)
    for start in range(0, len(positions), step):
        inputs = read_inputs(fitted, source, positions[start : start + step])
        for first in range(0, len(inputs), _BATCH):
            batch = inputs[first : first + _BATCH]
            of_batch = slice(start + first, start + first + len(batch))
            starts, valid, lead = times
            of_times = (starts[of_batch], valid[of_batch], None if lead is None else lead[of_batch])
            parts.append(model_values(fitted, batch, of_times))
    coordinates, dims, shape = sample_coordinates(fitted, source, positions)
    options = fitted.options
    dataset = fitted.layout.build(np.concatenate(parts), coordinates, dims, shape, options)
    if options.missing == "fill":
        dataset.attrs["smoe_missing_inputs"] = "replaced by the mean of the pixel in the training period"
    return dataset if len(options.leads) < 2 else _along_leads(fitted, dataset, source, positions)


def _along_leads(fitted: Fitted, dataset: xr.Dataset, source: FieldSource, positions: np.ndarray) -> xr.Dataset:
    """Predictions of several leads in one dimension `lead_time`, beside the times of the inputs."""
    leads, time = fitted.options.leads, fitted.layout.time[0]
    names = dict.fromkeys(each.variable for each in without_lead(fitted.target_channels, fitted.options))
    ends = ["", "_spread"] if fitted.options.objective == "gaussian" else [""]
    joined, used = {}, []
    for name, end in itertools.product(names, ends):
        parts = [lead_name(name, lead) + end for lead in leads]
        used += parts
        whole = import_xarray().concat(
            [dataset[part] for part in parts], "lead_time", coords="minimal", compat="override"
        )
        joined[name + end] = whole.transpose(time, ...)
    return dataset.drop_vars(used).assign(joined).assign_coords(_lead_coordinates(fitted, source, positions))


def _lead_coordinates(fitted: Fitted, source: FieldSource, positions: np.ndarray) -> dict[str, Any]:
    """Times of the inputs, lead times and valid times where there are several leads."""
    labels, time, leads = source.labels, fitted.layout.time[0], fitted.options.leads
    if labels is None or len(leads) < 2:
        return {}
    valid = [labels.coordinate(_valid_seconds(fitted, source, positions, lead)) for lead in leads]
    starts = labels.coordinate(labels.seconds[positions], positions)
    return {
        time: ((time,), starts, {"standard_name": "forecast_reference_time"}),
        "lead_time": (("lead_time",), [lead_hours(parse_lead(lead)) for lead in leads], LEAD_ATTRIBUTES),
        "valid_time": ((time, "lead_time"), np.stack(valid, 1), {"standard_name": "time"}),
    }


LEAD_ATTRIBUTES = {"standard_name": "forecast_period", "units": "hours"}


def lead_hours(lead: Lead) -> float:
    """A lead in hours, months of 30 days."""
    return lead.seconds / 3600.0 + 720.0 * lead.months


def sample_times(fitted: Fitted, source: FieldSource, positions: np.ndarray) -> Times:
    """Times of inputs and targets at some positions of new inputs."""
    lead = lead_channel(positions, source.lead_times, fitted.lead_scale)
    labels = source.labels
    if labels is None:
        if fitted.ladder.design.anomalies.basis.has_seasons:
            raise DataError("the inputs have no time, but the model depends on the season or the hour: add one")
        none = np.zeros(len(positions), np.int64)
        return none, none, lead
    if source.lead_times is not None:
        num_leads = len(source.lead_times)
        starts = labels.seconds[positions // num_leads]
        return starts, starts + source.lead_times[positions % num_leads], lead
    starts = labels.seconds[positions]
    return starts, _valid_seconds(fitted, source, positions), lead


def _valid_seconds(
    fitted: Fitted, source: FieldSource, positions: np.ndarray, lead_text: str | None = None
) -> np.ndarray:
    labels, lead = source.labels, parse_lead(lead_text or fitted.options.last_lead)
    assert labels is not None
    if lead.months and fitted.layout.months is not None:
        # The day and hour that the targets have in each month, so that predictions can be compared with them.
        months = labels.months(labels.seconds[positions]) + lead.months
        return fitted.layout.months.seconds(months, labels.calendar)
    return labels.shifted(labels.seconds[positions], lead)


def sample_coordinates(
    fitted: Fitted, source: FieldSource, positions: np.ndarray
) -> tuple[dict[str, Any], tuple[str, ...], tuple[int, ...]]:
    """Coordinates, dimensions and sizes that the samples make."""
    name, attributes = fitted.layout.time
    attributes = {key: value for key, value in attributes.items() if key not in ("bounds", "units", "calendar")}
    labels = source.labels
    if labels is None:
        return {}, (), ()
    if source.lead_times is None:
        is_monthly = parse_lead(fitted.options.last_lead).months and fitted.layout.months is not None
        dates = labels.coordinate(_valid_seconds(fitted, source, positions), None if is_monthly else positions)
        return {name: ((name,), dates, attributes)}, (name,), (len(positions),)
    num_leads = len(source.lead_times)
    starts = np.unique(positions // num_leads)
    begin, lead = source.axes.time or "init_time", source.axes.lead or source.axes.lead_coordinate or "lead_time"
    seconds = labels.seconds[starts]
    coordinates: dict[str, Any] = {
        begin: ((begin,), labels.coordinate(seconds, starts), {"standard_name": "forecast_reference_time"})
    }
    hours = source.lead_times / 3600.0
    if source.axes.lead is None:
        coordinates[lead] = ((), hours[0], LEAD_ATTRIBUTES)
        valid = labels.coordinate(seconds + source.lead_times[0], starts)
        coordinates["valid_time"] = ((begin,), valid, {"standard_name": "time"})
        return coordinates, (begin,), (len(starts),)
    coordinates[lead] = ((lead,), hours, LEAD_ATTRIBUTES)
    valid = labels.coordinate((seconds[:, None] + source.lead_times).ravel(), np.repeat(starts, num_leads))
    valid = valid.reshape(len(starts), num_leads)
    coordinates["valid_time"] = ((begin, lead), valid, {"standard_name": "time"})
    return coordinates, (begin, lead), (len(starts), num_leads)


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
