"""All that a fitted regressor consists of, the numbers that it predicts, and what data sets of them look like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from smoe.errors import DataError, printable, suggest
from smoe.gridded import (
    Channel,
    FieldSource,
    HorizontalGrid,
    MonthTimes,
    NodeGrid,
    Orientation,
    Period,
    find_month_times,
    import_xarray,
)
from smoe.losses import gaussian_crps
from smoe.meshes import NODES, Mesh, with_mesh
from smoe.regression._ladder import Ladder, Spread, Trees
from smoe.regression._nets import NetShape, Regression, count_parameters
from smoe.regression._options import SIMPLE, Objective, RegressorOptions
from smoe.regression._preparation import Statistics, functions_of

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
        nodes = dataset[NODES].attrs["nodes"] if NODES in dataset.coords else None
        coordinates: dict[str, Described] = {}
        for name in dict.fromkeys(names):
            array = dataset[name]
            if source.axes.time in array.dims or array.dtype.kind not in "iufUSb" or name in mappings:
                continue
            if name == NODES or array.attrs.get("standard_name") in _OF_THE_TARGETS:
                continue
            coordinates[name] = _described(array)
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
            None if nodes is None else (nodes.dimension, {n: _described(each) for n, each in nodes.variables.items()}),
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


def _described(array: Any) -> Described:
    return tuple(map(str, array.dims)), np.asarray(array.values), plain_attributes(array.attrs)


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


FOLDS = ("fold0", "fold1", "fold2")
"""Names of plain nets that are fitted without a third of the blocks of times each, for shares and in files."""


@dataclass(frozen=True, kw_only=True)
class Fitted(Learned):
    """A fitted regressor."""

    net: Regression  # trained SMoE net, or the user's own net; for a simple model, one that adds nothing
    plain: Regression | None = None  # plain net of the same size, if one was fitted beside it
    # plain nets of the same size, each fitted without a third of the blocks of training and validation
    folds: tuple[Regression, ...] = ()
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
        return pixel_weights(self.grid, self.options)

    @property
    def nets(self) -> dict[str, Regression]:
        found = {"net": self.net, "plain": self.plain, **dict(zip(FOLDS, self.folds, strict=False))}
        return {name: net for name, net in found.items() if net is not None and name in self.shares}

    @property
    def kept(self) -> str:
        """The net with the largest share in what predicts, or the ladder."""
        best = max(self.shares, key=lambda name: float(self.shares[name].sum()), default="ladder")
        return best if best in self.shares and self.shares[best].any() else "ladder"

    @property
    def keeps_plain(self) -> bool:
        """Whether a plain net predicts more than the SMoE net."""
        return self.kept not in ("net", "ladder")

    @property
    def predictor(self) -> Regression:
        """The net with the largest share in what predicts."""
        return self.nets.get(self.kept, self.net)

    def spread_of(self, rung: str) -> np.ndarray:
        """Standard deviation of the errors of a rung at times that were not fitted, `(K, H, W)`."""
        return self.ladder.spreads[rung].reshape(self.spread.pixels.shape).astype(np.float32)

    @property
    def statistics(self) -> Statistics:
        return self.ladder.statistics

    @property
    def net_kind(self) -> str:
        """What `net` is called beside the plain net."""
        return "own net" if self.has_own_net else "SMoE net"

    def describe(self) -> str:
        plain = f"plain {self.options.net}"
        kind = "own net" if self.has_own_net else self.options.net
        used = [
            f"{kind if name == 'net' else plain} of {count_parameters(net)} parameters"
            for name, net in self.nets.items()
            if self.shares[name].any()
        ]
        used = [f"{used.count(each)} x {each}" if used.count(each) > 1 else each for each in dict.fromkeys(used)]
        what = f"{' + '.join(used)} on {self.base}" if used else self.base
        targets = ", ".join(channel.name for channel in self.target_channels)
        lead = f", lead {self.options.lead}" if self.options.lead else ""
        return printable(f"{what} for {targets}{lead} on {self.grid.describe()}")

    def period_of(self, which: str) -> Period:
        if which not in self.bounds:
            raise DataError(f"the model has no period {which!r}; {suggest(which, self.bounds)}")
        return Period(*self.bounds[which], self.calendar)

    @property
    def weakness(self) -> str | None:
        """Caveat about a net that predicts though its base alone was better in the validation period."""
        ours = self.validation.get("net", 0.0) if self.options.keep == "smoe" else 0.0
        # Not finite is not better either.
        if ours is not None and ours <= 1.002:
            return None
        has_diverged = ours is None or not ours <= 9.0
        return printable(
            "the model is no better than a simple prediction in the validation period: its objective is "
            f"{'not finite' if ours is None else f'{ours:.4g} times that'} of {self.base}; "
            f"{'the training has diverged, lower learning_rate' if has_diverged else 'use that, or train longer'}"
        )

    def remarks(self) -> tuple[str, ...]:
        """Caveats to print with the scores."""
        unknown = "no plain net was fitted to compare with, so whether the location matters for these data is not known"
        is_alone = self.plain is None and self.options.net not in SIMPLE
        return tuple(each for each in (self.verdict, unknown if is_alone else None, self.weakness) if each)


def best_validation(records: Sequence[Mapping[str, Any]]) -> float | None:
    """Lowest objective of the validation part in training records; None if it was never finite."""
    values = [record.get("validation/loss") for record in records]
    finite = [value for value in values if isinstance(value, (int, float)) and np.isfinite(value)]
    return min(finite) if finite else None


def run_net(net: Regression, inputs: np.ndarray) -> np.ndarray:
    """Outputs of a net for normalised inputs `(N, C, H, W)`, on the net's device."""
    device = next((parameter.device for parameter in net.parameters()), torch.device("cpu"))
    net.eval()
    with torch.no_grad():
        return net(torch.from_numpy(inputs).to(device)).float().cpu().numpy()


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
        rungs = fitted.ladder.predict(inputs, *times, names=[fitted.base])
    values = {"base": fitted.spread.numbers(rungs[fitted.base], times[1], fitted.options)}
    for name, net in nets.items():
        values[name] = net_values(fitted, net, inputs, times, rungs[fitted.base])
    is_chosen = nets and fitted.options.keep == "better"
    found = mix(values, fitted.shares, fitted.ladder.familiarity(inputs, times[0]) if is_chosen else None)
    widen = fitted.spread.widen[:, None, None]
    if fitted.options.objective == "gaussian":
        found[:, :, 1] *= widen
    elif fitted.options.objective == "quantiles":
        middle = central(fitted.options, found)[:, :, None]
        found = middle + (found - middle) * widen[:, None]
    return finished(fitted, found)


def mix(
    values: Mapping[str, np.ndarray], shares: Mapping[str, np.ndarray], part: np.ndarray | None = None
) -> np.ndarray:
    """The base, and the shares `(K,)`, or a part `(N,)` of these, by which others replace it, `(N, K, n, H, W)`."""
    found = values["base"].astype(np.float32)
    for name, share in shares.items():
        if share.any():
            of_samples = share if part is None else part[:, None] * share
            found = found + of_samples.astype(np.float32)[..., None, None, None] * (values[name] - values["base"])
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


# Bounds of the logarithm of the spread, in standard deviations of the target.
_LOWEST, _HIGHEST = -9.0, 9.0


def split_gaussian(output: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and spread from `(B, K * 2, H, W)`: two `(B, K, H, W)`."""
    parts = output.unflatten(1, (-1, 2))
    return parts[:, :, 0], parts[:, :, 1].clamp(_LOWEST, _HIGHEST).exp()


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
