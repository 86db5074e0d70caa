"""Damaged data files: one kind for each format that is read.

What is cut off must be noticed. Other damage must be where a checksum covers the file; a NetCDF file, say, has none for
its values, and a flipped bit of a value is read as another value.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ens10_files import STARTS, write_grib
from faults.damage import damage, mutate_text, truncate
from faults.outcome import Kind, Outcome, TryCase, random_of, read_or_refuse
from gridded_files import regional
from image_files import cifar10_bytes, draw_images, idx_bytes
from image_folders import make_picture
from smoe import confined_process
from smoe.gridded.field_source import FieldSource
from smoe.gridded.open_fields import open_fields


class Format(NamedTuple):
    """A format of files.

    Attributes:
        name: Short name.
        write: Writes a small file, or a folder, at a path.
        read: Reads it; returns what is compared.
        ending: Ending of the name of the file or folder.
        has_checksum: Every damage must be noticed.
    """

    name: str
    write: Callable[[Path], object]
    read: Callable[[Path], Any]
    ending: str
    has_checksum: bool = False


def _fields(path: Path) -> list[np.ndarray]:
    with open_fields(path) as data:
        source = FieldSource(data)
        labels = [] if source.labels is None else [source.labels.seconds]
        return [source.read(np.arange(source.num_positions)), source.grid.rows, source.grid.columns, *labels]


def _write_netcdf(format: str) -> Callable[[Path], object]:
    return lambda path: regional(8).to_netcdf(path, format=format, engine="netcdf4")  # type: ignore[arg-type]


def _write_zarr(**options: Any) -> Callable[[Path], object]:
    encoding = {"t2m": {"chunks": (2, 3, 5), **options.pop("encoding", {})}}
    return lambda path: regional(8).to_zarr(path, encoding=encoding, consolidated=False, **options)


def _blosc() -> dict[str, Any]:
    from numcodecs import Blosc

    return {"compressors": [Blosc()]}


def _write_grib(path: Path) -> object:
    return write_grib(path, "pl", STARTS[:1], numbers=(1,))


def _write_members(path: Path) -> object:
    return write_grib(path, "pl", STARTS[:1])


def _read_members(path: Path) -> list[np.ndarray]:
    from smoe.paper.ens10.data.member_files import MemberFile, open_members
    from smoe.paper.ens10.data.variables import TASKS

    task = next(task for task in TASKS.values() if task.name == "z500")
    members = open_members(MemberFile(path, STARTS[0], has_all_years=False), task)
    return [members.read(variable, start) for variable in task.variables for start in members.starts]


def _read_idx(path: Path) -> np.ndarray:
    from smoe.paper.images.data.idx import read_idx

    return read_idx(path, 3)


def _read_cifar(path: Path) -> Any:
    from smoe.paper.images.data.cifar10 import read_cifar10

    return list(read_cifar10(path))


def _read_image(path: Path) -> np.ndarray:
    from smoe.paper.imagenet.data.read_image import read_image

    return np.asarray(read_image(path))


def _read_region_map(path: Path) -> np.ndarray:
    from smoe.paper.heat.data.region_maps import load_region_map

    return load_region_map(path)


def _read_frames(path: Path) -> np.ndarray:
    from smoe.paper.heat.data.diffusion import load_frames

    return np.array(load_frames(path, shape=(2, 3, 4, 5)))


def _write_mesh(path: Path) -> object:
    import meshio

    points = np.random.default_rng(0).normal(size=(6, 3))
    cells: list[Any] = [("triangle", np.array([[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]]))]
    data: dict[str, Any] = {} if path.suffix in (".stl", ".ply") else {"sst": np.arange(6.0)}
    return meshio.Mesh(points, cells, point_data=data).write(path)


def _write_ugrid(path: Path) -> object:
    import xarray as xr

    topology = {"cf_role": "mesh_topology", "topology_dimension": 2, "node_coordinates": "lon lat",
                "face_node_connectivity": "corners"}  # fmt: skip
    faces = np.array([[0, 1, 4, -9], [1, 3, 4, -9], [1, 5, 2, 3]], np.int32)
    data = xr.Dataset({
        "mesh": ((), 0, topology),
        "lon": ("nodes", np.array([0.0, 10, 20, 10, 0, 20]), {"units": "degrees_east"}),
        "lat": ("nodes", np.array([0.0, 0, 10, 10, 10, 0]), {"units": "degrees_north"}),
        "corners": (("faces", "most"), faces, {"_FillValue": np.int32(-9), "start_index": 0}),
        "sst": (("time", "nodes"), np.arange(12.0).reshape(2, 6), {"location": "node"}),
    })  # fmt: skip
    return data.to_netcdf(path)


def _read_mesh(path: Path) -> Any:
    from smoe.meshes import read_mesh

    mesh = read_mesh(path)
    return [mesh.coordinates.numpy(), mesh.edge_index.numpy(), *(field.numpy() for field in mesh.fields.values())]


def _write_store(path: Path) -> object:
    from tiny_weather import make_store

    return make_store(path)


def _read_store(path: Path) -> Any:
    from smoe.paper.weather.data.store import WeatherStore

    store = WeatherStore.open(path)
    for _ in store.verify():
        pass
    return [np.asarray(store.fields), store.raw_constants, store.mean, store.std]


def _write_model(path: Path) -> object:
    import smoe

    model = smoe.GridRegressor("layer", progress=False, filters=2, max_epochs=1, device="cpu", compare="no")
    model.fit(regional(20, 4, 6, seed=1), regional(20, 4, 6, seed=2))
    return model.save(path)


def _read_model(path: Path) -> Any:
    import smoe

    model = smoe.GridRegressor.load(path)
    weights = [tensor.numpy() for tensor in model.net.state_dict().values()]
    return [*weights, np.array(json.dumps(model.fitted.describe())), model.predict(regional(3, 4, 6))["t2m"].values]


FORMATS = (
    Format("netcdf-classic", _write_netcdf("NETCDF3_CLASSIC"), _fields, ".nc"),
    Format("netcdf-64bit", _write_netcdf("NETCDF3_64BIT"), _fields, ".nc"),
    Format("netcdf-4", _write_netcdf("NETCDF4"), _fields, ".nc"),
    Format("zarr-2", _write_zarr(zarr_format=2), _fields, ".zarr"),
    Format("zarr-2-blosc", lambda path: _write_zarr(zarr_format=2, encoding=_blosc())(path), _fields, ".zarr"),
    Format("zarr-3", _write_zarr(zarr_format=3), _fields, ".zarr"),
    Format("zarr-3-shards", _write_zarr(zarr_format=3, encoding={"shards": (4, 3, 5)}), _fields, ".zarr"),
    Format("grib", _write_grib, _fields, ".grib"),
    Format("grib-members", _write_members, _read_members, ".grib"),
    Format("idx", lambda path: path.write_bytes(idx_bytes(draw_images(3, (28, 28))[0])), _read_idx, ""),
    Format("idx-gzip", lambda path: path.write_bytes(gzip.compress(idx_bytes(draw_images(3, (28, 28))[0]))), _read_idx,
           ".gz"),
    Format("cifar-10", lambda path: path.write_bytes(cifar10_bytes(*draw_images(2, (3, 32, 32)))), _read_cifar, ".bin"),
    Format("jpeg", lambda path: make_picture(1).save(path), _read_image, ".jpeg"),
    Format("png", lambda path: make_picture(1).save(path), _read_image, ".png"),
    Format("region-map-npy", lambda path: np.save(path, np.arange(12).reshape(3, 4) % 3), _read_region_map, ".npy"),
    Format("region-map-csv", lambda path: path.write_text("0,1,2\n2,1,0\n"), _read_region_map, ".csv"),
    Format("frames-npy", lambda path: np.save(path, np.ones((2, 3, 4, 5), np.float32)), _read_frames, ".npy"),
    Format("mesh-ugrid", _write_ugrid, _read_mesh, ".nc"),
    Format("mesh-vtu", _write_mesh, _read_mesh, ".vtu"),
    Format("mesh-vtk", _write_mesh, _read_mesh, ".vtk"),
    Format("mesh-gmsh", _write_mesh, _read_mesh, ".msh"),
    Format("mesh-stl", _write_mesh, _read_mesh, ".stl"),
    Format("mesh-ply", _write_mesh, _read_mesh, ".ply"),
    Format("weather-store", _write_store, _read_store, "", has_checksum=True),
    Format("fitted-model", _write_model, _read_model, "", has_checksum=True),
)  # fmt: skip

# Formats without a length: a text, or a list of triangles, that ends early is a shorter one.
_WITHOUT_LENGTH = ("region-map-csv", "mesh-stl")


def _digest(result: Any) -> str:
    arrays = result if isinstance(result, list) else [result]
    content = hashlib.sha256()
    for array in map(np.asarray, arrays):
        content.update(f"{array.dtype} {array.shape}".encode())
        content.update(str(array).encode() if array.dtype == object else np.ascontiguousarray(array).tobytes())
    return content.hexdigest()


def _shorten_time_limit() -> None:
    """Gives a reader that does not come to an end one second, and not five: every tenth damaged mesh is such a case."""
    shorten = "import smoe.confined_process as confined; confined._SECONDS = 1.0; "
    confined_process._START = confined_process._START.replace("from smoe", f"{shorten}from smoe", 1)


def _prepare(format: Format, folder: Path) -> TryCase:
    if format.name.startswith("mesh-"):
        _shorten_time_limit()
    original = folder / f"original{format.ending}"
    if not original.exists():
        format.write(original)
    expected = _digest(format.read(original))

    def try_case(number: int) -> Outcome:
        # A name of its own, because xarray keeps files open.
        damaged = folder / f"damaged-{number}{format.ending}"
        what = _copy_damaged(original, damaged, random_of(format.name, number))
        must_notice = format.has_checksum or ("truncated" in what and format.name not in _WITHOUT_LENGTH)
        # A GRIB file that is cut off between two messages is a shorter file.
        must_notice = must_notice and not (format.ending == ".grib" and damaged.read_bytes().endswith(b"7777"))
        is_right = (lambda result: _digest(result) == expected) if must_notice else None
        outcome = read_or_refuse(what, lambda: format.read(damaged), is_right)
        shutil.rmtree(damaged, ignore_errors=True) if damaged.is_dir() else damaged.unlink(missing_ok=True)
        return outcome

    return try_case


def _copy_damaged(original: Path, damaged: Path, chance: random.Random) -> str:
    """Writes a damaged copy; returns what was done."""
    if original.is_file():
        what, content = _damage_file(original, chance)
        damaged.write_bytes(content)
        return what
    shutil.copytree(original, damaged)
    file = chance.choice(sorted(path for path in damaged.rglob("*") if path.is_file() and path.stat().st_size))
    name = file.relative_to(damaged)
    if chance.random() < 0.1:
        file.unlink()
        # A store without the metadata of an array is one without that array.
        return f"{name} removed" if _is_json(file) else f"{name} truncated to nothing"
    what, content = _damage_file(file, chance)
    file.write_bytes(content)
    return f"{name}: {what}"


def _damage_file(file: Path, chance: random.Random) -> tuple[str, bytes]:
    content = file.read_bytes()
    if _is_json(file):
        return mutate_text(content.decode(), chance)
    return truncate(content, chance) if chance.random() < 0.25 else damage(content, chance)


def _is_json(file: Path) -> bool:
    return file.suffix == ".json" or file.name in (".zarray", ".zattrs", ".zgroup")


def _kind(format: Format) -> Kind:
    return Kind(f"file-{format.name}", f"damaged files: {format.name}", 500, lambda folder: _prepare(format, folder))


KINDS = tuple(map(_kind, FORMATS))
