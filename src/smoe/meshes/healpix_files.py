"""HEALPix spheres of data sets: the grid mapping, the order of the pixels and their neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from smoe.errors import DataError
from smoe.meshes.mesh import edges_of_sides, on_sphere
from smoe.ops._healpix import HEALPixOrder, face_pixels, healpix_coordinates, pad_faces

_HEALPIX_ORDERS: dict[str, HEALPixOrder] = {"nest": "nested", "nested": "nested", "ring": "ring"}


@dataclass(frozen=True)
class HealpixSphere:
    """Pixels of a HEALPix sphere in the order of a file.

    Attributes:
        dimension: Dimension of the pixels.
        nside: Pixels along a side of a face.
        order: Order of the pixels.
        places: Places of the pixels on the unit sphere, `(N, 3)`.
    """

    dimension: str
    nside: int
    order: HEALPixOrder
    places: np.ndarray

    def edges(self) -> np.ndarray:
        """Edges between neighbouring pixels in both directions, `(2, M)`."""
        return healpix_edges(self.nside, self.order)


def find_healpix(raw: Any) -> dict[str, Any] | None:
    """Attributes of the HEALPix grid mapping of a data set; None if it has none."""
    return next((dict(each.attrs) for each in (raw, *raw.variables.values()) if has_healpix(each)), None)


def has_healpix(variable: Any) -> bool:
    """Whether a variable or data set has the attributes of a HEALPix grid mapping."""
    return variable.attrs.get("grid_mapping_name") == "healpix" or "healpix_nside" in variable.attrs


def read_healpix(fields: Any, mapping: dict[str, Any]) -> HealpixSphere:
    """Reads the sphere that the attributes of a grid mapping describe.

    Raises:
        DataError: If the mapping is incomplete, no dimension has its pixels, or they are in another order.
    """
    nside, order = _read_nside(mapping), _read_order(mapping)
    if order == "nested" and nside & (nside - 1):
        raise DataError(f"healpix_nside must be a power of two in nested order, got {nside}")
    num_pixels = 12 * nside * nside
    dimensions = [str(name) for name, size in fields.sizes.items() if size == num_pixels and not _is_time(fields, name)]
    if not dimensions:
        raise DataError(f"no dimension has the {num_pixels} pixels of nside {nside}, but {dict(fields.sizes)}")
    _check_numbers(fields, dimensions[0], num_pixels)
    coordinates = healpix_coordinates(nside, order)
    _check_given_coordinates(fields, dimensions[0], coordinates, order)
    return HealpixSphere(dimensions[0], nside, order, on_sphere(*coordinates.numpy().T))


def _read_nside(mapping: dict[str, Any]) -> int:
    """The number of pixels along a side: `healpix_nside`, or two to the power of CF's `refinement_level`."""
    for key in ("healpix_nside", "refinement_level"):
        if key in mapping:
            try:
                value = int(mapping[key])
            except (TypeError, ValueError):
                value = -1
            lowest, highest = (1, 2**29) if key == "healpix_nside" else (0, 29)
            if not lowest <= value <= highest:
                raise DataError(
                    f"{key} of the HEALPix grid mapping must be in [{lowest}, {highest}], got {mapping[key]}"
                )
            return value if key == "healpix_nside" else 2**value
    raise DataError("the HEALPix grid mapping has no healpix_nside and no refinement_level")


def _read_order(mapping: dict[str, Any]) -> HEALPixOrder:
    given = str(mapping.get("healpix_order", mapping.get("indexing_scheme", "")))
    if given not in _HEALPIX_ORDERS:
        raise DataError(f"healpix_order must be one of {', '.join(_HEALPIX_ORDERS)}, got {given!r}")
    return _HEALPIX_ORDERS[given]


def _is_time(fields: Any, dimension: Any) -> bool:
    if dimension not in fields.variables:
        return False
    variable = fields.variables[dimension]
    return variable.dtype.kind == "M" or " since " in str(variable.attrs.get("units", ""))


def _check_numbers(fields: Any, dimension: str, num_pixels: int) -> None:
    """Refuses pixels whose own numbers say that they stand in no order."""
    for name, variable in fields.variables.items():
        is_number = name in (dimension, "cell_ids") or variable.attrs.get("standard_name") == "healpix_index"
        if is_number and variable.dims == (dimension,) and variable.dtype.kind in "iu":
            misplaced = np.flatnonzero(np.asarray(variable.values) != np.arange(num_pixels))
            if len(misplaced):
                place = int(misplaced[0])
                raise DataError(
                    f"{name} has the pixel {int(variable.values[place])} at place {place}: sort the pixels by it, from "
                    f"0 to {num_pixels - 1}"
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
