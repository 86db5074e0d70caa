"""Predictions of a fitted regressor in the units and the layout of its targets, and what is done with them."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from smoe.errors import DataError
from smoe.gridded import (
    FieldSource,
    Lead,
    block_rows,
    describe_position,
    import_xarray,
    parse_lead,
)
from smoe.losses import gaussian_crps
from smoe.regression._fitted import Fitted, run_net
from smoe.regression._nets import Regression
from smoe.regression._options import Objective, RegressorOptions
from smoe.regression._preparation import lead_channel, lead_name, memory_limit, without_lead

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


Times = tuple[np.ndarray, np.ndarray, np.ndarray | None]
"""Times of the inputs and of the targets of some samples, and lead times where they differ."""


def net_values(fitted: Fitted, net: Regression, inputs: np.ndarray, times: Times, base: np.ndarray) -> np.ndarray:
    """Predictions of a net on the rung that it corrects, `(N, K, n, H, W)`."""
    output = run_net(net, fitted.ladder.net_inputs(inputs, base, *times, is_own=fitted.has_own_net))
    return output_values(output, base, net, fitted.options)


def model_values(
    fitted: Fitted, inputs: np.ndarray, times: Times, rungs: Mapping[str, np.ndarray] | None = None
) -> np.ndarray:
    """What the model predicts: the base, and its share of each net."""
    nets = {name: net for name, net in fitted.nets.items() if fitted.shares[name].any()}
    if rungs is None:
        names = dict.fromkeys([fitted.base, *map(fitted.base_of, nets)])
        rungs = fitted.ladder.predict(inputs, *times, names=list(names))
    values = {"base": fitted.spread.numbers(rungs[fitted.base], times[1], fitted.options)}
    for name, net in nets.items():
        values[name] = net_values(fitted, net, inputs, times, rungs[fitted.base_of(name)])
    found = mix(values, fitted.shares)
    widen = fitted.spread.widen[:, None, None]
    if fitted.options.objective == "gaussian":
        found[:, :, 1] *= widen
    elif fitted.options.objective == "quantiles":
        middle = central(fitted.options, found)[:, :, None]
        found = middle + (found - middle) * widen[:, None]
    return finished(fitted, found)


def mix(values: Mapping[str, np.ndarray], shares: Mapping[str, np.ndarray]) -> np.ndarray:
    """The base, and the shares `(K,)` by which it is replaced by others, `(N, K, n, H, W)`."""
    found = values["base"].astype(np.float32)
    for name, share in shares.items():
        if share.any():
            found = found + share.astype(np.float32)[:, None, None, None] * (values[name] - values["base"])
    return found


def finished(fitted: Fitted, values: np.ndarray) -> np.ndarray:
    """Values `(N, K, n, H, W)` in the units of the targets and within their bounds; NaN where there is no target."""
    options = fitted.options
    last = 1 if options.objective == "gaussian" else values.shape[2]
    values = np.where(fitted.statistics.target_mask[:, None], fitted.inverse(values), np.nan)
    if options.lower is not None or options.upper is not None:
        values[:, :, :last] = np.clip(values[:, :, :last], options.lower, options.upper)
    return values


def output_values(output: np.ndarray, base: np.ndarray, net: Regression, options: RegressorOptions) -> np.ndarray:
    """Outputs of a net `(N, K * n, H, W)` and the base `(N, K, H, W)` as values in units, `(N, K, n, H, W)`."""
    scale = net.scale.cpu().numpy()[:, None, None, None]
    if options.objective == "gaussian":
        mean, std = (part.numpy() for part in split_gaussian(torch.from_numpy(output)))
        values = np.stack([mean, std], axis=2) * scale
        values[:, :, 0] += base
        return values.astype(np.float32)
    output = output.reshape(*base.shape[:2], -1, *base.shape[2:])
    return (np.sort(output, axis=2) * scale + base[:, :, None]).astype(np.float32)


def central(options: RegressorOptions, values: np.ndarray) -> np.ndarray:
    """The single best number of predictions `(N, K, n, H, W)`: the mean, or the quantile nearest to the median."""
    if options.objective != "quantiles":
        return values[:, :, 0]
    return values[:, :, int(np.argmin(np.abs(np.asarray(options.quantiles) - 0.5)))]


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
    # No block holds two years, which may be written to two files.
    years = np.repeat(source.labels.months(source.labels.seconds) // 12, source.num_leads)
    firsts = [np.arange(0, len(years), _block_size(fitted, source)), np.flatnonzero(np.diff(years)) + 1]
    edges = [*np.unique(np.concatenate(firsts)).tolist(), len(years)]
    # The function knows the model: of arguments dask would look for arrays of its own.
    predict: Any = dask.delayed(lambda first, last: predict_positions(fitted, source, np.arange(first, last)))
    blocks = [(predict(first, last), (last - first) // source.num_leads) for first, last in itertools.pairwise(edges)]
    coordinates, (dim, *_), _ = sample_coordinates(fitted, source, np.arange(len(years)))
    coordinates |= _lead_coordinates(fitted, source, np.arange(len(years)))

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


# Bounds of the logarithm of the spread, in standard deviations of the target.
_LOWEST, _HIGHEST = -9.0, 9.0


def split_gaussian(output: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and spread from `(B, K * 2, H, W)`: two `(B, K, H, W)`."""
    parts = output.unflatten(1, (-1, 2))
    return parts[:, :, 0], parts[:, :, 1].clamp(_LOWEST, _HIGHEST).exp()


def normal_quantiles(levels: Sequence[float]) -> np.ndarray:
    """Quantiles of the normal distribution."""
    return math.sqrt(2.0) * torch.erfinv(2.0 * torch.tensor(levels, dtype=torch.float64) - 1.0).numpy()


def objective_errors(values: Tensor, target: Tensor, kind: Objective, levels: Tensor) -> Tensor:
    """Error of predictions `(B, K, n, H, W)` by an objective, `(B, K, H, W)`; a gaussian has mean and spread."""
    if kind == "gaussian":
        return gaussian_crps(values[:, :, 0], values[:, :, 1], target)
    below = target[:, :, None] - values
    if kind == "quantiles":
        levels = levels.to(values)[:, None, None]
        return torch.maximum(levels * below, (levels - 1.0) * below).mean(dim=2)
    return below[:, :, 0].abs() if kind == "mae" else below[:, :, 0].square()


def errors_in_units(values: np.ndarray, truth: np.ndarray, options: RegressorOptions) -> np.ndarray:
    """Error of predictions by the objective in the units of the data; NaN where there is no truth."""
    # Squares of values of any unit.
    found, target = (torch.from_numpy(each.astype(np.float64)) for each in (values, truth))
    return objective_errors(found, target, options.objective, torch.tensor(options.quantiles)).numpy()
