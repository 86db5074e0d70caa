"""Fields on meshes in time: opened as one row of nodes, and learned by a net of graph or HEALPix layers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from smoe import read_mesh
from smoe.errors import DataError
from smoe.meshes import Mesh, MeshNet
from smoe.meshes._node_rows import as_row_of_nodes, make_mesh
from smoe.nn import GraphMoE

xarray = pytest.importorskip("xarray")

NSIDE, NUM_TIMES = 2, 40
HEALPIX = {"grid_mapping_name": "healpix", "healpix_nside": NSIDE, "healpix_order": "ring"}


def write_ring(path: Path, num_nodes: int = 12) -> Path:
    """A ring of nodes joined by edges."""
    nodes = np.arange(num_nodes)
    topology = {
        "cf_role": "mesh_topology",
        "topology_dimension": 1,
        "node_coordinates": "place_x place_y",
        "edge_node_connectivity": "sides",
    }
    dataset = xarray.Dataset(
        {
            "mesh": ((), 0, topology),
            "place_x": ("node", np.cos(2 * np.pi * nodes / num_nodes)),
            "place_y": ("node", np.sin(2 * np.pi * nodes / num_nodes)),
            "sides": (("side", "two"), np.stack([nodes, (nodes + 1) % num_nodes], axis=1), {"start_index": 0}),
            "sst": (("node", "time"), np.arange(24.0).reshape(num_nodes, 2).astype(np.float32), {"location": "node"}),
        }
    )
    dataset.to_netcdf(path)
    return path


def test_nodes_are_the_columns_of_one_row(tmp_path):
    path = write_ring(tmp_path / "ring.nc")
    fields = as_row_of_nodes(xarray.open_dataset(path))
    nodes = fields[["sst"]]["mesh_nodes"].attrs["nodes"]
    assert make_mesh(nodes).edge_index.equal(read_mesh(path).edge_index)
    assert (len(nodes.places), nodes.dimension, nodes.description) == (12, "node", "mesh of 12 points")
    assert list(fields.data_vars) == ["sst"] and fields["sst"].dims == ("time", "nj", "ni")
    assert fields["sst"].shape == (2, 1, 12) and fields["sst"].attrs["location"] == "node"
    np.testing.assert_array_equal(fields["sst"].values[:, 0], read_mesh(path).fields["sst"].numpy())


def test_a_net_on_a_mesh_without_a_grid_has_the_hash_of_its_nodes(tmp_path):
    mesh = read_mesh(write_ring(tmp_path / "ring.nc"))
    net = MeshNet(mesh, 2, 3, filters=4, num_blocks=2)
    assert isinstance(net.head.layer, GraphMoE)
    x = torch.randn(5, 2, 1, 12)
    output = net(x)
    assert output.shape == (5, 3, 1, 12)
    torch.testing.assert_close(net.eval()(x[:, :, 0]), net(x)[:, :, 0])
    other = Mesh(mesh.coordinates.flip(0), mesh.edge_index)
    turned = MeshNet(other, 2, 3, filters=4, num_blocks=2)
    with pytest.raises(RuntimeError, match="coordinates of the saved gate"):
        turned.load_state_dict(net.state_dict())
    with pytest.raises(ValueError, match=r"input must be \(B, C, 12\) or \(B, C, 1, 12\), got shape \(5, 2, 2, 6\)"):
        net(torch.randn(5, 2, 2, 6))


def test_files_without_fields_or_nodes_are_refused() -> None:
    mask = (("cell",), np.ones(48, dtype=np.int8))
    with pytest.raises(DataError, match=r"no floating variable has the dimension 'cell' of the nodes"):
        as_row_of_nodes(xarray.Dataset({"crs": ((), 0, HEALPIX), "mask": mask}))
    with pytest.raises(DataError, match=r"has neither a UGRID topology"):
        as_row_of_nodes(xarray.Dataset({"x": (("time", "cell"), np.ones((2, 48)))}))
