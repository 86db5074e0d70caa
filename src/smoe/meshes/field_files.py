"""Meshes in NetCDF and Zarr: UGRID topologies and HEALPix spheres, read by xarray.

xarray alone suffices: uxarray would bring numba, polars, pyarrow and shapely for what is a table of corners here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from smoe.errors import DataError
from smoe.meshes.mesh import Mesh, edges_of_neighbours, edges_of_sides, on_sphere, sides_of_faces
from smoe.ops.healpix import HEALPixOrder, face_pixels, healpix_coordinates, pad_faces

_HEALPIX_ORDERS: dict[str, HEALPixOrder] = {"nest": "nested", "nested": "nested", "ring": "ring"}


def read_field_file(path: Path, location: str | None, *, with_fields: bool = True) -> Mesh:
    """Reads a UGRID mesh or a HEALPix sphere, with its fields or without."""
    try:
        import xarray
    except ImportError as error:
        raise ImportError("meshes in NetCDF and Zarr are read by xarray; pip install 'smoe[mesh]'") from error
    # Connectivity is decoded by hand: xarray would turn integers with a fill value into floats.
    options: dict[str, Any] = {}
    if path.suffix.lower() == ".zarr":
        options = {"engine": "zarr", "consolidated": (path / ".zmetadata").exists() or None}
        if options["consolidated"] is None and (path / ".zgroup").exists():
            options["consolidated"] = False
    try:
        raw = xarray.open_dataset(path, decode_cf=False, **options)
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"cannot be opened as NetCDF or Zarr ({error})") from error
    with raw:
        fields = xarray.decode_cf(raw, decode_coords=False, decode_times=False)
        topologies = [
            name for name, variable in raw.variables.items() if variable.attrs.get("cf_role") == "mesh_topology"
        ]
        if topologies:
            return _read_ugrid(raw, fields, str(topologies[0]), location, with_fields)
        mapping = _find_healpix(raw)
        if mapping is not None:
            return _read_healpix(fields, mapping, with_fields)
    raise DataError(
        "has neither a UGRID topology (a variable with cf_role='mesh_topology') nor a HEALPix grid mapping "
        "(grid_mapping_name='healpix'): a mesh without connectivity cannot be read"
    )


def _read_ugrid(raw: Any, fields: Any, name: str, location: str | None, with_fields: bool) -> Mesh:
    topology = raw[name].attrs
    places = _coordinates(fields, topology, "node_coordinates", name)
    assert places is not None
    connectivity = topology.get("face_node_connectivity")
    edges_name = topology.get("edge_node_connectivity")
    if connectivity is None and edges_name is None:
        raise DataError(f"the topology {name} has no face_node_connectivity and no edge_node_connectivity")
    face_dimension, faces = None, None
    if connectivity is not None:
        faces, face_dimension = _corners(raw, str(connectivity), len(places), topology.get("face_dimension"))
    node_dimension = _node_dimension(fields, topology)
    if location is None:
        location = _location_of_fields(fields, node_dimension, face_dimension)
    if location == "face":
        if faces is None:
            raise DataError(f"the topology {name} has no face_node_connectivity, but location is 'face'")
        centres = _coordinates(fields, topology, "face_coordinates", name)
        if centres is None:
            centres = _centres(places, faces, is_sphere=_is_sphere(fields, topology))
        return _make(centres, edges_of_neighbours(faces), fields if with_fields else None, face_dimension)
    if faces is not None:
        sides = sides_of_faces(faces)[0]
    else:
        sides = _corners(raw, str(edges_name), len(places), topology.get("edge_dimension"))[0]
    triangles = faces if faces is not None and faces.shape[1] == 3 and (faces >= 0).all() else None
    return _make(places, edges_of_sides(sides), fields if with_fields else None, node_dimension, triangles)


def _make(
    places: np.ndarray, edges: np.ndarray, fields: Any, dimension: str | None, triangles: np.ndarray | None = None
) -> Mesh:
    return Mesh(
        torch.from_numpy(np.ascontiguousarray(places, dtype=np.float64)),
        torch.from_numpy(edges.astype(np.int64)),
        {} if fields is None else _read_fields(fields, dimension),
        None if triangles is None else torch.from_numpy(triangles.astype(np.int64)),
        dimension=dimension,
    )


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


def _read_fields(fields: Any, dimension: str | None) -> dict[str, torch.Tensor]:
    return {
        name: torch.from_numpy(np.ascontiguousarray(fields[name].transpose(..., dimension).values, dtype=np.float32))
        for name in fields_on(fields, dimension)
    }


def _location_of_fields(fields: Any, node_dimension: str, face_dimension: str | None) -> str:
    locations = {variable.attrs.get("location") for variable in fields.data_vars.values()} & {"node", "face"}
    if len(locations) > 1:
        raise DataError("has fields on points and on faces; choose one by location='node' or location='face'")
    if locations:
        return str(locations.pop())
    has_fields = {where: bool(fields_on(fields, where)) for where in (node_dimension, face_dimension) if where}
    return "face" if face_dimension and has_fields[face_dimension] and not has_fields[node_dimension] else "node"


def _node_dimension(fields: Any, topology: Any) -> str:
    first = str(topology["node_coordinates"]).split()[0]
    return str(fields[first].dims[0])


def _is_sphere(fields: Any, topology: Any) -> bool:
    return all("degree" in str(fields[name].attrs.get("units", "")) for name in topology["node_coordinates"].split())


def _coordinates(fields: Any, topology: Any, key: str, name: str) -> np.ndarray | None:
    """Places `(N, 3)`; angles become points of the unit sphere."""
    if key not in topology:
        if key == "node_coordinates":
            raise DataError(f"the topology {name} has no {key}")
        return None
    names = str(topology[key]).split()
    missing = [part for part in names if part not in fields.variables]
    if missing:
        raise DataError(f"{key} of {name} names {missing[0]}, which the file does not have")
    parts = [np.asarray(fields[part].values, dtype=np.float64) for part in names]
    if _is_sphere(fields, {"node_coordinates": topology[key]}) and len(parts) == 2:
        is_latitude = ["north" in str(fields[part].attrs["units"]) or "lat" in part.lower() for part in names]
        latitude, longitude = parts if is_latitude[0] else parts[::-1]
        return on_sphere(latitude, longitude)
    return np.pad(np.stack(parts, axis=1), ((0, 0), (0, 3 - len(parts))))


def _corners(raw: Any, name: str, num_points: int, first_dimension: str | None) -> tuple[np.ndarray, str]:
    """A table of point numbers from 0, `(F, most)`, with -1 for corners that do not exist; and its long dimension."""
    if name not in raw.variables:
        raise DataError(f"the connectivity {name}, which the topology names, is not in the file")
    variable = raw[name]
    if first_dimension in variable.dims[1:]:
        variable = variable.transpose(first_dimension, ...)
    values = np.asarray(variable.values)
    if values.dtype.kind not in "iu":
        if not np.array_equal(values[np.isfinite(values)], np.round(values[np.isfinite(values)])):
            raise DataError(f"{name} must hold integers, got {values.dtype}")
        values = np.where(np.isfinite(values), values, -1).astype(np.int64)
    fill = variable.attrs.get("_FillValue", variable.encoding.get("_FillValue"))
    is_missing = np.zeros(values.shape, dtype=bool) if fill is None else values == fill
    is_missing |= values == -1 if values.dtype.kind == "i" else False
    start = int(variable.attrs.get("start_index", 0))
    corners = np.where(is_missing, -1, values.astype(np.int64) - start)
    low, high = corners[~is_missing].min(initial=num_points), corners[~is_missing].max(initial=-1)
    if low == 1 and high == num_points and "start_index" not in variable.attrs:
        raise DataError(
            f"{name} numbers its points from 1 to {num_points}, but has no start_index: set its attribute start_index=1"
        )
    if low < 0 or high >= num_points:
        raise DataError(
            f"{name} names the points {low} to {high} (from {start}), but there are {num_points}; a value for missing "
            f"corners must be its _FillValue, which is {fill}"
        )
    if (is_missing[:, :2]).any():
        raise DataError(
            f"{name} has a face with fewer than two corners, number {int(is_missing[:, :2].any(1).argmax())}"
        )
    return corners, str(variable.dims[0])


def _centres(places: np.ndarray, faces: np.ndarray, *, is_sphere: bool) -> np.ndarray:
    weight = (faces >= 0)[..., None]
    centres = (places[faces] * weight).sum(axis=1) / weight.sum(axis=1)
    return centres / np.linalg.norm(centres, axis=1, keepdims=True) if is_sphere else centres


def _find_healpix(raw: Any) -> dict[str, Any] | None:
    for variable in (raw, *raw.variables.values()):
        if variable.attrs.get("grid_mapping_name") == "healpix" or "healpix_nside" in variable.attrs:
            return dict(variable.attrs)
    return None


def _read_healpix(fields: Any, mapping: dict[str, Any], with_fields: bool) -> Mesh:
    if "healpix_nside" not in mapping:
        raise DataError("the HEALPix grid mapping has no healpix_nside")
    nside = int(mapping["healpix_nside"])
    given = str(mapping.get("healpix_order", ""))
    if given not in _HEALPIX_ORDERS:
        raise DataError(f"healpix_order must be one of {', '.join(_HEALPIX_ORDERS)}, got {given!r}")
    order = _HEALPIX_ORDERS[given]
    num_pixels = 12 * nside * nside
    dimensions = [str(name) for name, size in fields.sizes.items() if size == num_pixels]
    if not dimensions:
        raise DataError(f"no dimension has the {num_pixels} pixels of nside {nside}, but {dict(fields.sizes)}")
    coordinates = healpix_coordinates(nside, order)
    _check_given_coordinates(fields, dimensions[0], coordinates, order)
    return Mesh(
        torch.from_numpy(on_sphere(*coordinates.numpy().T)),
        torch.from_numpy(healpix_edges(nside, order)),
        _read_fields(fields, dimensions[0]) if with_fields else {},
        nside=nside,
        pixel_order=order,
        dimension=dimensions[0],
    )


def _check_given_coordinates(fields: Any, dimension: str, expected: torch.Tensor, order: HEALPixOrder) -> None:
    """Refuses pixels whose own latitudes and longitudes are those of another order."""
    given = {
        kind: variable.values
        for variable in fields.variables.values()
        for kind in ("latitude", "longitude")
        if variable.attrs.get("standard_name") == kind and variable.dims == (dimension,)
    }
    if len(given) == 2:
        distance = np.linalg.norm(
            on_sphere(given["latitude"], given["longitude"]) - on_sphere(*expected.numpy().T), axis=1
        )
        if distance.max() > 1e-3:
            raise DataError(
                f"the latitudes and longitudes of the pixels are not those of {order} order (healpix_order)"
            )


def healpix_edges(nside: int, order: HEALPixOrder) -> np.ndarray:
    """Edges from each pixel's neighbours, eight or seven, to the pixel, `(2, M)`."""
    pixels = face_pixels(nside, order)
    numbers = pixels.view(1, 1, 12, nside, nside).double()
    padded = pad_faces(numbers, 1)[0, 0]
    # Where three faces meet, the border is a mean of two pixels and no neighbour: there it differs in its square.
    squares = pad_faces(numbers.square(), 1)[0, 0]
    is_pixel = squares == padded.square()
    sides = []
    for row in range(3):
        for column in range(3):
            window = (slice(None), slice(row, row + nside), slice(column, column + nside))
            chosen = is_pixel[window].flatten()
            sides.append(torch.stack([padded[window].flatten()[chosen].long(), pixels[chosen]], dim=1))
    return edges_of_sides(torch.cat(sides).numpy())
