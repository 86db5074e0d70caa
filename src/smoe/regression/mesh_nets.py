"""Networks of a regressor on the nodes of a mesh."""

from __future__ import annotations

from typing import Any

from torch import nn

from smoe.errors import DataError
from smoe.gridded._grids import HorizontalGrid
from smoe.meshes._mesh import Mesh
from smoe.meshes._mesh_net import MeshLayers, MeshNet, SummedMeshLayer
from smoe.meshes._node_fields import mesh_of_row
from smoe.regression.options import NetName

_LAYERS: dict[NetName, MeshLayers] = {"graph": "graph", "healpix": "healpix"}


def check_net_name(name: NetName, grid: HorizontalGrid) -> None:
    """Refuses a net that does not work on a grid or mesh, before any field is read.

    Raises:
        DataError: With the nets that do.
    """
    if grid.kind != "mesh" and name in _LAYERS:
        raise DataError(
            f"the net {name!r} works on meshes, but the fields are on a grid, {grid.describe()}: choose layer, resnet "
            "or unet"
        )
    if grid.kind == "mesh" and name == "unet":
        raise DataError(
            f"the net 'unet' works on rows and columns, but the fields are on a {grid.describe()}: choose layer, "
            "resnet, graph or healpix"
        )
    if name == "healpix" and "HEALPix" not in grid.describe():
        raise DataError(f"the net 'healpix' works on HEALPix spheres, but the fields are on a {grid.describe()}")


def mesh_of_targets(dataset: Any, grid: HorizontalGrid, own_net: nn.Module | None) -> Mesh | None:
    """The mesh that the targets lie on; None for a grid.

    Raises:
        DataError: If the targets were chosen from a data set in a way that lost the connectivity.
    """
    if grid.kind != "mesh":
        return None
    if isinstance(own_net, MeshNet):
        return own_net.mesh
    mesh = mesh_of_row(dataset)
    if mesh is None and own_net is None:
        raise DataError(
            "the fields have lost the connectivity of their mesh: give the whole file or data set, and choose "
            "variables by input_variables and target_variables"
        )
    return mesh


def make_mesh_module(
    name: NetName,
    mesh: Mesh,
    in_channels: int,
    out_channels: int,
    *,
    filters: int,
    num_blocks: int,
    num_experts: float | None,
) -> nn.Module:
    """A net of SMoE layers on a mesh, or a plain one where `num_experts` is None."""
    if name == "layer" and num_experts is not None:
        return SummedMeshLayer(
            mesh,
            in_channels,
            out_channels,
            num_selected=filters,
            num_experts=max(filters, round(filters * num_experts)),
        )
    return MeshNet(
        mesh,
        in_channels,
        out_channels,
        filters=filters,
        num_experts=num_experts,
        num_blocks=1 if name == "layer" else num_blocks,
        layers=_LAYERS.get(name),
    )
