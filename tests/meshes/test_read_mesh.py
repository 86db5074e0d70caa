"""Meshes from files: UGRID, HEALPix and meshio formats, and files that are refused."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from smoe import read_mesh
from smoe.errors import DataError
from smoe.nn._graph_layer import GraphMoE

xarray = pytest.importorskip("xarray")

# Two triangles and a square:  4 - 3 - 2      faces 0 1 4, 1 3 4, and 1 5 2 3 below and right of them.
#                              | / | \ |
#                              0 - 1 - 5
LONGITUDE = np.array([0.0, 10.0, 20.0, 10.0, 0.0, 20.0])
LATITUDE = np.array([0.0, 0.0, 10.0, 10.0, 10.0, 0.0])
FACES = np.array([[0, 1, 4, -9], [1, 3, 4, -9], [1, 5, 2, 3]], dtype=np.int32)
NEIGHBOURS = {0: {1, 4}, 1: {0, 3, 4, 5}, 2: {3, 5}, 3: {1, 2, 4}, 4: {0, 1, 3}, 5: {1, 2}}


def write_ugrid(path: Path, faces=FACES, location="node", **attributes) -> Path:
    attributes = {"_FillValue": np.int32(-9), "start_index": 0} | attributes
    attributes = {name: value for name, value in attributes.items() if value is not None}
    size = len(LONGITUDE) if location == "node" else len(faces)
    data = xarray.Dataset(
        {
            "mesh": (
                (),
                0,
                {
                    "cf_role": "mesh_topology",
                    "topology_dimension": 2,
                    "node_coordinates": "lon lat",
                    "face_node_connectivity": "corners",
                },
            ),
            "lon": ("nodes", LONGITUDE, {"units": "degrees_east", "standard_name": "longitude"}),
            "lat": ("nodes", LATITUDE, {"units": "degrees_north", "standard_name": "latitude"}),
            "corners": (("faces", "most"), faces, attributes),
            "sst": (("time", f"{location}s"), np.arange(2.0 * size).reshape(2, size), {"location": location}),
        }
    )
    if path.suffix == ".zarr":
        data.to_zarr(path, zarr_format=2, consolidated=False)
    else:
        data.to_netcdf(path)
    return path


def neighbours(edge_index: torch.Tensor) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for source, target in edge_index.T.tolist():
        found.setdefault(target, set()).add(source)
    return found


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_ugrid_points(tmp_path, suffix):
    mesh = read_mesh(write_ugrid(tmp_path / f"mesh{suffix}"))
    assert neighbours(mesh.edge_index) == NEIGHBOURS
    torch.testing.assert_close(mesh.fields["sst"], torch.arange(12.0).view(2, 6))
    assert set(mesh.fields) == {"sst"}
    torch.testing.assert_close(mesh.coordinates[0], torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64))
    torch.testing.assert_close(mesh.coordinates.norm(dim=1), torch.ones(6, dtype=torch.float64))
    layer = GraphMoE.from_experts(1, 3, 1, num_nodes=mesh.num_nodes, coordinates=mesh.coordinates)
    assert layer(mesh.fields["sst"][:, :, None], mesh.edge_index).shape == (2, 6, 1)


def test_ugrid_faces(tmp_path):
    path = write_ugrid(tmp_path / "mesh.nc", location="face")
    mesh = read_mesh(path)
    assert neighbours(mesh.edge_index) == {0: {1}, 1: {0, 2}, 2: {1}}
    assert mesh.fields["sst"].shape == (2, 3)
    assert neighbours(read_mesh(path, location="node").edge_index) == NEIGHBOURS


def test_ugrid_numbered_from_one(tmp_path):
    faces = np.where(FACES < 0, -9, FACES + 1).astype(np.int32)
    assert neighbours(read_mesh(write_ugrid(tmp_path / "a.nc", faces, start_index=1)).edge_index) == NEIGHBOURS
    with pytest.raises(DataError, match=r"b\.nc: corners numbers its points from 1 to 6, but has no start_index"):
        read_mesh(write_ugrid(tmp_path / "b.nc", faces, start_index=None))


def test_ugrid_with_an_undeclared_fill_value(tmp_path):
    faces = np.where(FACES < 0, 999999, FACES).astype(np.int32)
    assert neighbours(read_mesh(write_ugrid(tmp_path / "a.nc", faces, _FillValue=np.int32(999999))).edge_index)
    with pytest.raises(DataError, match=r"names the points 0 to 999999 \(from 0\), but there are 6; .* is None"):
        read_mesh(write_ugrid(tmp_path / "b.nc", faces, _FillValue=None))


def test_files_without_connectivity(tmp_path):
    xarray.Dataset({"sst": ("x", np.zeros(4))}).to_netcdf(tmp_path / "plain.nc")
    with pytest.raises(DataError, match=r"neither a UGRID topology .* nor a HEALPix grid mapping"):
        read_mesh(tmp_path / "plain.nc")
    data = xarray.open_dataset(write_ugrid(tmp_path / "mesh.nc"), decode_cf=False).load()
    del data["mesh"].attrs["face_node_connectivity"]
    data.to_netcdf(tmp_path / "bare.nc")
    with pytest.raises(DataError, match="no face_node_connectivity and no edge_node_connectivity"):
        read_mesh(tmp_path / "bare.nc")
    data["mesh"].attrs["face_node_connectivity"] = "sides"
    data.to_netcdf(tmp_path / "gone.nc")
    with pytest.raises(DataError, match="the connectivity sides, which the topology names, is not in the file"):
        read_mesh(tmp_path / "gone.nc")
    (tmp_path / "broken.nc").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"broken\.nc is not a NetCDF file"):
        read_mesh(tmp_path / "broken.nc")
    with pytest.raises(FileNotFoundError, match="there is no mesh file"):
        read_mesh(tmp_path / "none.nc")
    with pytest.raises(ValueError, match="location must be one of node, face, got 'edge'"):
        read_mesh(tmp_path / "mesh.nc", location="edge")  # type: ignore[arg-type]


def write_healpix(path: Path, order="nest", nside=2, coordinates_of=None) -> Path:
    from smoe.ops._healpix import healpix_coordinates

    variables = {
        "crs": ((), 0, {"grid_mapping_name": "healpix", "healpix_nside": nside, "healpix_order": order}),
        "t2m": (("time", "cell"), np.random.default_rng(0).normal(size=(3, 12 * nside**2)), {"grid_mapping": "crs"}),
    }
    if coordinates_of is not None:
        latitude, longitude = healpix_coordinates(nside, coordinates_of).numpy().T
        variables["lat"] = ("cell", latitude, {"standard_name": "latitude"})
        variables["lon"] = ("cell", longitude, {"standard_name": "longitude"})
    data = xarray.Dataset(variables)
    data.to_zarr(path, zarr_format=2, consolidated=False) if path.suffix == ".zarr" else data.to_netcdf(path)
    return path


@pytest.mark.parametrize(("order", "suffix"), [("nest", ".nc"), ("ring", ".zarr")])
def test_healpix(tmp_path, order, suffix):
    healpy = pytest.importorskip("healpy")
    mesh = read_mesh(write_healpix(tmp_path / f"sphere{suffix}", order))
    assert (mesh.nside, mesh.pixel_order) == (2, "nested" if order == "nest" else "ring")
    assert set(mesh.fields) == {"t2m"} and mesh.fields["t2m"].shape == (3, 48)
    around = healpy.get_all_neighbours(2, np.arange(48), nest=order == "nest").T
    expected = {pixel: {int(other) for other in row if other >= 0} for pixel, row in enumerate(around)}
    assert neighbours(mesh.edge_index) == expected
    place = np.stack(healpy.pix2vec(2, np.arange(48), nest=order == "nest"), axis=1)
    np.testing.assert_allclose(mesh.coordinates.numpy(), place, atol=1e-12)


def test_healpix_in_another_order_than_declared(tmp_path):
    read_mesh(write_healpix(tmp_path / "right.nc", "ring", coordinates_of="ring"))
    with pytest.raises(DataError, match="are not those of nested order"):
        read_mesh(write_healpix(tmp_path / "wrong.nc", "nest", coordinates_of="ring"))
    with pytest.raises(DataError, match="healpix_order must be one of nest, nested, ring, got 'spiral'"):
        read_mesh(write_healpix(tmp_path / "spiral.nc", "spiral"))


def test_meshio(tmp_path):
    meshio = pytest.importorskip("meshio")
    points = np.stack([LONGITUDE, LATITUDE, 0 * LATITUDE], axis=1)
    cells = [("triangle", FACES[:2, :3]), ("quad", FACES[2:])]
    values = {"sst": np.arange(6.0), "wind": np.arange(12.0).reshape(6, 2), "of:format": np.arange(6.0)}
    meshio.Mesh(points, cells, point_data=values, cell_data={"area": [[1.0, 2.0], [3.0]]}).write(tmp_path / "mesh.vtu")
    both = meshio.read(tmp_path / "mesh.vtu")
    mesh = read_mesh(both)
    assert neighbours(mesh.edge_index) == NEIGHBOURS and set(mesh.fields) == {"sst", "wind"}
    np.testing.assert_allclose(mesh.coordinates.numpy(), points)
    torch.testing.assert_close(mesh.fields["sst"], torch.arange(6.0))
    torch.testing.assert_close(mesh.fields["wind"], torch.arange(12.0).view(6, 2).T)
    faces = read_mesh(both, location="face")
    assert neighbours(faces.edge_index) == {0: {1}, 1: {0, 2}, 2: {1}}
    torch.testing.assert_close(faces.fields["area"], torch.tensor([1.0, 2.0, 3.0]))
    tetra = meshio.Mesh(np.eye(4, 3), [("tetra", np.arange(4)[None])])
    assert neighbours(read_mesh(tetra).edge_index) == {p: {0, 1, 2, 3} - {p} for p in range(4)}
    vertices = meshio.Mesh(points, [("vertex", np.arange(6)[:, None])])
    with pytest.raises(DataError, match="has no connectivity: its cells are vertex"):
        read_mesh(vertices)
    with pytest.raises(DataError, match="no triangles, quads or polygons, but location is 'face'; cells: vertex"):
        read_mesh(vertices, location="face")
    with pytest.raises(DataError, match="triangle cells name the points 2 to 6, but there are 6"):
        read_mesh(meshio.Mesh(points, [("triangle", FACES[:2, :3] + 2)]))
    with pytest.raises(DataError, match="has cells of type 'hexahedron20', whose sides are not known"):
        read_mesh(meshio.Mesh(np.zeros((20, 3)), [("hexahedron20", np.arange(20)[None])]))
    with pytest.raises(DataError, match=r"mesh\.vtu: meshes are read from \.nc, .*, got '\.vtu': give what meshio"):
        read_mesh(tmp_path / "mesh.vtu")


@pytest.mark.filterwarnings("ignore")
def test_a_real_file():
    spec = importlib.util.find_spec("iris_sample_data")
    if spec is None or spec.origin is None:
        pytest.skip("needs iris-sample-data")
    files = sorted(Path(spec.origin).parent.rglob("mesh_C4_synthetic_float.nc"))
    if not files:
        pytest.skip("this iris-sample-data has no mesh")
    mesh = read_mesh(files[0])
    # A cubed sphere of 6 faces with 4 x 4 cells, each with four neighbours.
    assert mesh.num_nodes == 96 and mesh.edge_index.shape == (2, 384)
    assert mesh.fields


def test_pipes_and_devices_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.nc")
    (tmp_path / "zero.nc").symlink_to("/dev/zero")
    for name in ("pipe", "zero"):
        with pytest.raises(DataError, match=rf"{name}\.nc is not a regular file"):
            read_mesh(tmp_path / f"{name}.nc")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data["corners"].attrs.update(start_index="x"), "start_index of corners must be a whole number"),
        (
            lambda data: data["corners"].attrs.update(start_index=[1, 2]),
            "start_index of corners must be a whole number",
        ),
        (lambda data: data["mesh"].attrs.update(face_node_connectivity="mesh"), "must be a table of point numbers"),
        (lambda data: data["mesh"].attrs.update(face_node_connectivity="lon"), "must be a table of point numbers"),
        (lambda data: data["mesh"].attrs.update(node_coordinates=""), "must name one to three lists of equal length"),
        (lambda data: data["mesh"].attrs.update(node_coordinates="lon lat lon lat"), "must name one to three lists"),
        (lambda data: data["mesh"].attrs.update(node_coordinates="lon corners"), "must name one to three lists"),
        (lambda data: data["lat"].values.fill(999.0), r"latitudes must be in \[-90, 90\], got 999"),
    ],
)
def test_a_topology_that_lies_is_refused_with_the_name(tmp_path: Path, change: Any, message: str) -> None:
    data = xarray.open_dataset(write_ugrid(tmp_path / "mesh.nc"), decode_cf=False).load()
    change(data)
    data.to_netcdf(tmp_path / "lying.nc")
    with pytest.raises(DataError, match=rf"lying\.nc: .*{message}"):
        read_mesh(tmp_path / "lying.nc")
