"""Small files with fields in time on meshes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

FACE = "nexample_C4_face"


def real_mesh() -> xr.Dataset:
    """The cubed sphere of 96 faces from iris-sample-data, without its field; corners are numbered from 1."""
    package = pytest.importorskip("iris_sample_data")
    with xr.open_dataset(Path(package.path) / "mesh_C4_synthetic_float.nc", decode_cf=False) as dataset:
        return dataset.drop_vars("synthetic").load()


def with_times(topology: xr.Dataset, dimension: str, num_times: int = 30, **attributes: object) -> xr.Dataset:
    """A mesh with a field that continues differently from node to node, by a rule of the node's number."""
    rng = np.random.default_rng(0)
    num_nodes = topology.sizes[dimension] if dimension in topology.sizes else int(attributes.pop("num_nodes"))  # type: ignore
    memory = np.array([0.9, -0.8], np.float32)[np.arange(num_nodes) % 2]
    field = np.empty((num_times, num_nodes), np.float32)
    field[0] = rng.normal(size=num_nodes)
    for time in range(1, num_times):
        field[time] = memory * field[time - 1] + 0.2 * rng.normal(size=num_nodes)
    dates = ("time", np.arange(num_times, dtype=np.float64), {"units": "days since 2001-01-01"})
    dataset = topology.assign_coords(time=dates)
    dataset["sst"] = (("time", dimension), field, {"units": "K", **attributes})
    return dataset


def real_ocean(num_times: int = 30) -> xr.Dataset:
    """A field in time on the faces of the real mesh."""
    return with_times(real_mesh(), FACE, num_times, mesh="example_C4", location="face")


def sphere(order: str = "nest", nside: int = 2, num_times: int = 30) -> xr.Dataset:
    """A field in time on a HEALPix sphere."""
    mapping = {"grid_mapping_name": "healpix", "healpix_nside": nside, "healpix_order": order}
    mesh = xr.Dataset({"crs": ((), np.int32(0), mapping)})
    return with_times(mesh, "cell", num_times, grid_mapping="crs", num_nodes=12 * nside**2)
