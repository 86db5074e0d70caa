"""The routing of a fitted regressor as a map with coordinates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from smoe.diagnostics import fixed_choices, fixed_gates
from smoe.errors import DataError
from smoe.gridded._datasets import import_xarray
from smoe.meshes._node_fields import with_mesh
from smoe.regression.fitted import Fitted
from smoe.suggestions import suggest

if TYPE_CHECKING:
    import xarray as xr


def routing_map(fitted: Fitted, gate: str | int = 0, slot: int | None = 0) -> xr.DataArray:
    """Numbers of the experts at each pixel, as `GridRegressor.routing_map` says.

    Raises:
        DataError: If there is no such gate or slot, or the gate has a coarser grid than the data.
    """
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
    if fitted.keeps_plain:
        attributes["comment"] = (
            "the plain net predicts, which was better on validation; this is the routing of the other"
        )
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
