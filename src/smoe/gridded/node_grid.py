"""The nodes of a mesh as a grid of one row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from smoe.gridded.horizontal_grid import HorizontalGrid, Orientation

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True)
class NodeGrid(HorizontalGrid):
    """Nodes in the order of their file: a grid of one row whose columns are no neighbours of each other.

    `rows` holds the places of the nodes, `(N, 3)`.

    Attributes:
        description: What the mesh is, such as `HEALPix sphere of nside 32 in ring order`.
    """

    description: str = ""

    @classmethod
    def of(cls, places: np.ndarray, description: str) -> NodeGrid:
        """The grid of nodes at some places, `(N, 3)`."""
        return cls("mesh", (1, len(places)), places, np.empty(0), closes_circle=False, description=description)

    @property
    def remedy(self) -> str:
        """What a user does whose nodes differ from those of a model."""
        return "give the same nodes in the same order, or fit a model for these"

    def difference(self, other: HorizontalGrid) -> str | None:
        """In which way another grid differs, both described; None if it has the same nodes in the same order."""
        both = f"{self.describe()} against {other.describe()}"
        if not isinstance(other, NodeGrid) or self.shape != other.shape:
            return f"{both}: they differ in kind or size"
        distance = float(np.linalg.norm(self.rows - other.rows, axis=1).max())
        # A share of the distance of neighbours, as if the nodes filled a surface: files round coordinates.
        extent = float(np.ptp(self.rows, axis=0).max())
        if distance <= 0.02 * extent / np.sqrt(self.shape[1]):
            return None
        if self.description != other.description:
            return both
        return f"{both}: their nodes differ by up to {distance:.3g}, so that it is another mesh, or another order"

    def describe(self) -> str:
        """What the mesh is."""
        return self.description

    def area_weights(self) -> None:
        """None: all nodes count alike."""


def read_node_grid(array: xr.DataArray) -> tuple[NodeGrid, Orientation]:
    """Reads the nodes of a field on a row of nodes, as `smoe.meshes` makes them of files with meshes."""
    from smoe.meshes._node_fields import DESCRIPTION, PLACES

    places = np.concatenate([np.asarray(array[name].values, np.float64) for name in PLACES]).T
    grid = NodeGrid.of(np.ascontiguousarray(places), str(array[DESCRIPTION].attrs["description"]))
    return grid, Orientation(np.arange(1), np.arange(len(places)))


def grid_from_plain(plain: dict[str, Any], rows: np.ndarray, columns: np.ndarray) -> HorizontalGrid:
    """The inverse of `to_plain`.

    Args:
        plain: What JSON keeps of a grid.
        rows: Its coordinates of rows.
        columns: Its coordinates of columns.
    """
    if plain["kind"] == "mesh":
        return NodeGrid.of(rows, plain["description"])
    pole = None if plain.get("pole") is None else tuple(plain["pole"])
    return HorizontalGrid(plain["kind"], tuple(plain["shape"]), rows, columns, plain["closes_circle"], pole)
