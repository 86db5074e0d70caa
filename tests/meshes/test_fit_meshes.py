"""`smoe fit`, `smoe predict` and `smoe report` on files with meshes: they are recognised, and no flag says so."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr

import smoe
from mesh_files import FACE, real_mesh, real_ocean, sphere, with_times
from smoe import read_mesh
from smoe.cli.main import main
from smoe.errors import DataError
from smoe.gridded._open import open_fields
from smoe.meshes import MeshNet
from smoe.meshes._mesh import read_nodes
from smoe.meshes._node_rows import make_mesh
from smoe.nn import GraphMoE, HEALPixMoE
from smoe.ops._healpix import healpix_coordinates
from smoe.reports.read_fit import read_fit

SMALL = ["--filters", "4", "--num-blocks", "1", "--num-experts", "2", "--max-epochs", "2", "--device", "cpu"]


def fit(folder: Path, *flags: str, inputs: str = "ocean.nc") -> int:
    command = ["fit", str(folder / inputs), str(folder / inputs), "--lead", "1D", "-o", str(folder / "run")]
    return main([*command, *SMALL, *flags])


@pytest.fixture(scope="module")
def ocean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of a real mesh, with its file."""
    folder = tmp_path_factory.mktemp("ocean")
    real_ocean().to_netcdf(folder / "ocean.nc")
    assert fit(folder, "--keep", "smoe") == 0
    return folder


def test_the_user_names_nothing_but_the_files(ocean: Path) -> None:
    model = smoe.GridRegressor.load(ocean / "run")
    assert model.fitted.describe().endswith("for sst, lead 1D on mesh of 96 faces")
    layers = [module for module in model.net.modules() if isinstance(module, (GraphMoE, HEALPixMoE))]
    assert len(layers) == 4 and all(isinstance(layer, GraphMoE) for layer in layers)
    edges = read_mesh(ocean / "ocean.nc").edge_index
    assert model.fitted.mesh is not None and model.fitted.mesh.edge_index.equal(edges)
    scores = json.loads((ocean / "run" / "scores.json").read_text())
    assert {"model", "plain net of the same size", "persistence"} <= set(scores["rmse"])
    assert model.score(ocean / "ocean.nc", ocean / "ocean.nc").rmse["model"][0] > 0.0


def test_predictions_keep_the_topology(ocean: Path, tmp_path: Path) -> None:
    for output in (tmp_path / "out.nc", tmp_path / "out.zarr"):
        assert main(["predict", str(ocean / "run"), str(ocean / "ocean.nc"), "-o", str(output)]) == 0
        given, written = read_mesh(ocean / "ocean.nc"), read_mesh(output)
        assert written.edge_index.equal(given.edge_index) and written.coordinates.equal(given.coordinates)
        assert written.fields["sst"].shape == (30, 96) and written.dimension == FACE
    expected = smoe.GridRegressor.load(ocean / "run").predict(ocean / "ocean.nc")
    raw = xr.open_dataset(tmp_path / "out.nc", decode_cf=False)
    np.testing.assert_allclose(raw["sst"], expected["sst"], rtol=1e-6)
    assert raw.attrs["Conventions"] == "CF-1.11 UGRID-1.0"
    for name, variable in real_mesh().variables.items():
        assert raw[name].variable.dtype == variable.dtype, name
        np.testing.assert_array_equal(raw[name].values, variable.values)
    # What was predicted is itself a file to predict from.
    assert main(["predict", str(ocean / "run"), str(tmp_path / "out.nc"), "-o", str(tmp_path / "twice.nc")]) == 0


def test_corners_with_a_fill_value_are_integers_again(tmp_path: Path) -> None:
    mesh = real_mesh()
    corners = mesh["example_C4_face_nodes"]
    filled = np.concatenate([corners.values, np.full((96, 1), -9, np.int32)], axis=1)
    mesh["example_C4_face_nodes"] = ((FACE, "Five"), filled, {**corners.attrs, "_FillValue": np.int32(-9)})
    with_times(mesh, FACE, mesh="example_C4", location="face").to_netcdf(tmp_path / "ocean.nc")
    # Little memory: predictions are written block by block, and joined again.
    assert fit(tmp_path, "--max-memory-gb", "2e-5", "--compare", "no") == 0
    assert main(["predict", str(tmp_path / "run"), str(tmp_path / "ocean.nc"), "-o", str(tmp_path / "out.nc")]) == 0
    assert read_mesh(tmp_path / "out.nc").edge_index.equal(read_mesh(tmp_path / "ocean.nc").edge_index)
    with xr.open_dataset(tmp_path / "out.nc", decode_cf=False) as raw:
        np.testing.assert_array_equal(raw["example_C4_face_nodes"].values, filled)
        assert raw["example_C4_face_nodes"].dtype == np.int32 and raw["example_C4_face_nodes"].attrs["_FillValue"] == -9


def test_a_sphere_takes_layers_of_spheres(tmp_path: Path) -> None:
    sphere("ring").to_zarr(tmp_path / "ocean.zarr", zarr_format=2)
    assert fit(tmp_path, "--compare", "no", inputs="ocean.zarr") == 0
    model = smoe.GridRegressor.load(tmp_path / "run")
    layers = [module for module in model.fitted.net.modules() if isinstance(module, (GraphMoE, HEALPixMoE))]
    assert layers and all(isinstance(layer, HEALPixMoE) for layer in layers)
    predicted = model.predict(tmp_path / "ocean.zarr")
    assert predicted["sst"].dims == ("time", "cell") and predicted["crs"].attrs["healpix_order"] == "ring"


@pytest.mark.parametrize("dataset", [real_ocean, sphere])
def test_one_layer_learns_what_each_node_does(dataset, tmp_path: Path) -> None:
    fields = xr.decode_cf(dataset(num_times=150))
    model = smoe.GridRegressor(
        "layer", lead="1D", filters=2, num_experts=2.0, local_affine=False, max_epochs=10, patience=10,
        batch_size=8, learning_rate=3e-2, keep="smoe", progress=False, num_threads=1,
    )  # fmt: skip
    model.fit(fields, fields)
    rmse = model.score(fields, fields, period=model.fitted.period_of("validation")).rmse
    # A regression of each node learns it at once.
    assert rmse["ridge regression"][0] < 0.8 * rmse["persistence"][0]
    assert rmse["model"][0] < 0.8 * rmse["persistence"][0]
    routing = model.routing_map()
    dimension = fields["sst"].dims[1]
    assert routing.dims == (dimension,) and set(np.unique(routing)) <= set(range(4))
    model.save(tmp_path / "again")
    again = smoe.GridRegressor.load(tmp_path / "again").predict(fields)
    np.testing.assert_array_equal(again["sst"], model.predict(fields)["sst"])


def test_a_net_of_ones_own_learns_on_a_sphere() -> None:
    fields = xr.decode_cf(sphere(num_times=60))
    mesh = make_mesh(read_nodes(fields, None))
    assert (mesh.nside, mesh.pixel_order) == (2, "nested")
    torch.manual_seed(0)
    net = MeshNet(mesh, 1, 1, filters=8)
    assert isinstance(net.stem.layer, HEALPixMoE)
    model = smoe.GridRegressor(
        net, lead="1D", max_epochs=20, batch_size=4, learning_rate=1e-2, num_threads=1, compare="no", keep="smoe",
        progress=False,
    ).fit(fields, fields)  # fmt: skip
    later = fields["sst"].shift(time=-1).isel(time=slice(0, -1))
    wrong = model.predict(fields)["sst"].values[:-1] - later.values
    assert np.mean(np.square(wrong)) < 0.3 * float(later.var())


def test_the_report_knows_the_mesh(ocean: Path) -> None:
    report = read_fit(ocean / "run", "ocean", None, print)
    assert report.places is not None and report.places.kind == "mesh" and report.gates[0].places.num_pixels == 96


def refused(capsys: pytest.CaptureFixture[str], *command: object) -> str:
    """The one line that a command is refused with."""
    capsys.readouterr()
    assert main([str(part) for part in command]) == 1
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def test_other_meshes_are_refused(ocean: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fields = real_ocean()
    turned = fields.isel({FACE: slice(None, None, -1)})
    turned.to_netcdf(tmp_path / "turned.nc")
    sphere().to_netcdf(tmp_path / "sphere.nc")
    predict = ("predict", ocean / "run", "-o", tmp_path / "out.nc")
    line = refused(capsys, *predict[:2], tmp_path / "turned.nc", *predict[2:])
    assert "their nodes differ by up to" in line and "another order" in line and "the same order" in line
    line = refused(capsys, *predict[:2], tmp_path / "sphere.nc", *predict[2:])
    assert "HEALPix sphere of nside 2 in nested order against mesh of 96 faces" in line
    assert not (tmp_path / "out.nc").exists()
    (tmp_path / "mesh.vtu").write_text("")
    line = refused(capsys, "fit", tmp_path / "mesh.vtu", ocean / "ocean.nc", "-o", tmp_path / "run")
    assert "mesh.vtu holds no dates: write its series in time as UGRID NetCDF" in line
    line = refused(capsys, "fit", ocean / "ocean.nc", tmp_path / "turned.nc", "-o", tmp_path / "run")
    assert "different grids" in line and "another order" in line
    assert not (tmp_path / "run").exists()


def test_ring_is_not_nested(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sphere("nest").to_netcdf(tmp_path / "ocean.nc")
    sphere("ring").to_netcdf(tmp_path / "ring.nc")
    assert fit(tmp_path, "--compare", "no") == 0
    line = refused(capsys, "predict", tmp_path / "run", tmp_path / "ring.nc", "-o", tmp_path / "out.nc")
    assert "nside 2 in ring order against HEALPix sphere of nside 2 in nested order" in line
    mixed = sphere("ring")
    latitude, longitude = healpix_coordinates(2, "nested").numpy().T
    mixed["lat"] = ("cell", latitude, {"standard_name": "latitude"})
    mixed["lon"] = ("cell", longitude, {"standard_name": "longitude"})
    mixed.to_netcdf(tmp_path / "mixed.nc")
    line = refused(capsys, "fit", tmp_path / "mixed.nc", tmp_path / "mixed.nc", "-o", tmp_path / "other")
    assert "are not those of ring order" in line


def test_nets_of_another_geometry_are_refused() -> None:
    text = "the net 'unet' works on rows and columns, but the fields are on a mesh of 96 faces: choose layer or resnet"
    with pytest.raises(DataError, match=text):
        smoe.GridRegressor("unet", progress=False).fit(*2 * (xr.decode_cf(real_ocean()),))


def test_fields_on_points_and_faces_need_a_location(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fields = real_ocean()
    node = "nexample_C4_node"
    fields["height"] = (("time", node), np.random.default_rng(1).normal(size=(30, 98)).astype("f4"))
    fields["height"].attrs["location"] = "node"
    fields.to_netcdf(tmp_path / "ocean.nc")
    path = tmp_path / "ocean.nc"
    assert "location='node' or location='face'" in refused(capsys, "fit", path, path, "-o", tmp_path / "run")
    assert fit(tmp_path, "--location", "node", "--compare", "no") == 0
    assert [c.name for c in smoe.GridRegressor.load(tmp_path / "run").fitted.target_channels] == ["height"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"healpix_nside": 3}, r"must be a power of two in nested order, got 3"),
        ({"healpix_nside": "two"}, r"healpix_nside of the HEALPix grid mapping must be in \[1, 536870912\], got two"),
        ({"healpix_nside": 4}, r"no dimension has the 192 pixels of nside 4"),
        ({"healpix_order": "spiral"}, r"healpix_order must be one of nest, nested, ring, got 'spiral'"),
    ],
)
def test_wrong_grid_mappings_are_refused(change: dict[str, object], text: str) -> None:
    fields = sphere()
    fields["crs"].attrs |= change
    with pytest.raises(DataError, match=text):
        smoe.GridRegressor(progress=False).fit(fields, fields)


def test_pixels_in_no_order_are_refused_and_the_words_of_cf_are_known() -> None:
    fields = sphere()
    fields["crs"].attrs = {"grid_mapping_name": "healpix", "refinement_level": 1, "indexing_scheme": "nested"}
    numbers = np.roll(np.arange(48), 1)
    with pytest.raises(DataError, match="cell has the pixel 47 at place 0: sort the pixels by it, from 0 to 47"):
        smoe.GridRegressor(progress=False).fit(fields.assign_coords(cell=numbers), fields)
    row = open_fields(fields.assign_coords(cell=np.arange(48)))
    assert row["mesh_nodes"].attrs["nodes"].description == "HEALPix sphere of nside 2 in nested order"


def test_files_that_follow_each_other_and_static_fields_keep_the_mesh(tmp_path: Path) -> None:
    fields, depth = real_ocean(), real_mesh()
    fields.isel(time=slice(0, 14)).to_netcdf(tmp_path / "sst_1.nc")
    # Another program wrote it: the topology has no edges there.
    names = [name for name in fields.variables if "edge" in str(name)]
    later = fields.isel(time=slice(14, None)).drop_vars(names)
    for name in names:
        later["example_C4"].attrs.pop(
            str(name).replace("example_C4_", "").replace("nodes", "node") + "_connectivity", 0
        )
    later.to_netcdf(tmp_path / "sst_2.nc")
    depth["depth"] = (FACE, np.linspace(0.0, 1.0, 96), {"units": "m", "location": "face"})
    depth.to_netcdf(tmp_path / "depth.nc")
    pattern = str(tmp_path / "sst_*.nc")
    command = ["fit", pattern, pattern, "--static", str(tmp_path / "depth.nc"), "--lead", "1D"]
    assert main([*command, "-o", str(tmp_path / "run"), "--compare", "no", *SMALL]) == 0
    model = smoe.GridRegressor.load(tmp_path / "run")
    assert [channel.name for channel in model.fitted.input_channels] == ["sst", "depth"]
    assert model.predict(pattern)["sst"].shape == (30, 96)
