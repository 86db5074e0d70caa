"""Which variables of a data set are fields on the nodes of its mesh."""

from __future__ import annotations

from typing import Any


def fields_on(dataset: Any, dimension: str | None) -> list[str]:
    """Names of the floating variables whose last axis can be the nodes, without coordinates and connectivity."""
    places = {
        name
        for variable in dataset.variables.values()
        if variable.attrs.get("cf_role") == "mesh_topology"
        for key in ("node_coordinates", "edge_coordinates", "face_coordinates")
        for name in str(variable.attrs.get(key, "")).split()
    }
    return [
        str(name)
        for name, variable in dataset.data_vars.items()
        if dimension in variable.dims
        and name not in places
        and variable.dtype.kind == "f"
        and "cf_role" not in variable.attrs
        and variable.attrs.get("standard_name") not in ("latitude", "longitude")
    ]
