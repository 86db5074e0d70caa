"""All that a fitted regressor consists of, and what new inputs must have to be predicted from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from smoe.diagnostics import fixed_choices, fixed_gates
from smoe.errors import DataError, printable, suggest
from smoe.gridded import (
    Channel,
    FieldSource,
    HorizontalGrid,
    OpenOptions,
    Period,
    are_same_units,
    import_xarray,
    open_fields,
)
from smoe.meshes import Mesh, with_mesh
from smoe.regression._ladder import CLIMATOLOGY, MEAN_ERROR, GridLadder, Ladder
from smoe.regression._layout import OutputLayout
from smoe.regression._nets import NetShape, Regression, count_parameters
from smoe.regression._options import SIMPLE, RegressorOptions
from smoe.regression._statistics import Statistics

if TYPE_CHECKING:
    import xarray as xr


Kept = Literal["ladder", "net", "plain", "alone"]


@dataclass(frozen=True)
class Fitted:
    """A fitted regressor.

    Attributes:
        options: Options that it was fitted with.
        ladder: Simple models.
        base: The rung of it that the nets correct.
        net: Trained SMoE net, or the user's own net; for a simple model, one that adds nothing.
        plain: Plain net of the same size, if one was fitted beside it.
        alone: Plain net of the same size that does not know the simple models, if one was fitted.
        kept: What predicts.
        validation: Objective in the validation part, as a share of the base's, of the nets and rungs.
        verdict: What predicts, and what the nets add to the simple models, in one line.
        shape: What the nets are made for.
        has_own_net: Whether the net is a module of the user's own.
        input_channels: Channels of the inputs, static ones among them.
        target_channels: Channels of the targets.
        grid: Grid of both.
        mesh: Mesh that its nodes belong to; None for a grid.
        layout: Layout of predictions.
        statistics: Statistics of the training part.
        static: Values of the static inputs, `(C', H, W)`.
        input_mask: Pixels where inputs had no value at any time, `(C, H, W)`.
        lead_scale: Seconds that the channel of lead times is divided by; None without such a channel.
        calendar: Calendar of the times.
        periods: Periods of the splits, as text.
        bounds: First second of each of them, and the first one after it.
        records: Records of the training of `model` and `plain`, epoch by epoch.
        trained: First second of the times of the training samples, and the first one after them.
        samples: Number of samples of each split, and of those that were left out, by the reason.
        notes: What was noted of the data of the fit, and what looked wrong in them.
        weakness: What must be said if a simple prediction is better in the validation period; None if none is.
    """

    options: RegressorOptions
    ladder: Ladder
    base: str
    net: Regression
    plain: Regression | None
    alone: Regression | None
    kept: Kept
    validation: Mapping[str, float]
    verdict: str
    shape: NetShape
    has_own_net: bool
    input_channels: tuple[Channel, ...]
    target_channels: tuple[Channel, ...]
    grid: HorizontalGrid
    mesh: Mesh | None
    layout: OutputLayout
    statistics: Statistics
    static: np.ndarray
    input_mask: np.ndarray
    lead_scale: float | None
    calendar: str
    periods: Mapping[str, str]
    bounds: Mapping[str, tuple[int, int]]
    records: Mapping[str, list[dict[str, Any]]]
    trained: tuple[int, int]
    samples: Mapping[str, int]
    notes: tuple[str, ...]
    weakness: str | None = None

    @property
    def dynamic_variables(self) -> list[str]:
        """Names of the input variables that depend on time."""
        return list(dict.fromkeys(channel.variable for channel in self.input_channels if not channel.is_static))

    @property
    def pixel_weights(self) -> np.ndarray:
        """Weight of each pixel in the scores, `(H, W)`."""
        weights = self.grid.area_weights() if self.options.area_weights else None
        return np.ones(self.grid.shape) if weights is None else weights

    @property
    def keeps_plain(self) -> bool:
        """Whether a plain net predicts."""
        return self.kept in ("plain", "alone")

    @property
    def predictor(self) -> Regression:
        """The net that predicts; where it is a simple model, one that adds nothing."""
        found = {"plain": self.plain, "alone": self.alone}.get(self.kept)
        return self.net if found is None else found

    @property
    def simple_base(self) -> str:
        """What the plain net that does not know the ladder starts from."""
        return MEAN_ERROR if MEAN_ERROR in self.ladder.rungs else CLIMATOLOGY

    def base_of(self, net: Regression) -> str:
        """The rung that a net corrects."""
        return self.simple_base if net is self.alone else self.base

    @cached_property
    def grid_ladder(self) -> GridLadder:
        """The simple models for fields of all inputs."""
        is_dynamic = np.asarray([not channel.is_static for channel in self.input_channels])
        return GridLadder(self.ladder, self.statistics, is_dynamic)

    @property
    def net_kind(self) -> str:
        """What `net` is called beside the plain net."""
        return "own net" if self.has_own_net else "SMoE net"

    def describe(self) -> str:
        """Net, targets and grid in one line."""
        net = "own net" if self.has_own_net else self.options.net
        net = f"plain {net}" if self.keeps_plain else net
        net = f"{net} of {count_parameters(self.predictor)} parameters"
        net = self.base if self.kept == "ladder" else net if self.kept == "alone" else f"{net} on {self.base}"
        targets = ", ".join(channel.name for channel in self.target_channels)
        lead = f", lead {self.options.lead}" if self.options.lead else ""
        return printable(f"{net} for {targets}{lead} on {self.grid.describe()}")

    def period_of(self, which: str) -> Period:
        """Period of a split, such as `test`."""
        if which not in self.bounds:
            raise DataError(f"the model has no period {which!r}; {suggest(which, self.bounds)}")
        return Period(*self.bounds[which], self.calendar)

    def best_validation(self, which: str) -> float | None:
        """Lowest objective of the validation part in the training of the `model` or the `plain` net."""
        return best_validation(self.records.get(which, ()))

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
    source = FieldSource(dataset, needed, "inputs", with_series=True, like=expected)
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
    if not net.share.any():
        return np.broadcast_to(net.start.cpu().numpy(), (len(inputs), *net.start.shape)).copy()
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
