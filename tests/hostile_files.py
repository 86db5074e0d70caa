"""Files that are made to do harm: they lead to other files, run code, never end, or take memory."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hdf5_files
from gridded_files import regional


def write_hdf5(path: Path, name: str) -> str:
    """Writes a NetCDF-4 file by its name in `HDF5`, and one of somebody else beside it; returns what is said of it."""
    spoil, message = HDF5[name]
    secret = path.with_name("secret.nc")
    regional(8).rename(t2m="theirs").to_netcdf(secret, format="NETCDF4")
    regional(8).to_netcdf(path, format="NETCDF4")
    spoil(path, secret)
    return message


def write_zarr(path: Path, name: str) -> str:
    """Writes a Zarr store by its name in `ZARR`, which makes a folder `ran` beside it if its code is run."""
    version, spoil, message = ZARR[name]
    regional(8).to_zarr(path, zarr_format=version, consolidated=version == 2)  # type: ignore[call-overload]
    spoil(path)
    return message


# What is done to a file, and what is said of it.
HDF5: dict[str, tuple[Callable[[Path, Path], None], str]] = {
    "external link": (
        lambda file, secret: hdf5_files.add_external_link(file, "theirs", secret, "/theirs"),
        "own.nc: /theirs is a link to another file, which is not followed",
    ),
    "external link to a group": (
        lambda file, secret: hdf5_files.add_external_link(file, "all\x1b[2J", secret),
        r"own.nc: /all\\x1b\[2J is a link to another file",
    ),
    "external values": (
        lambda file, secret: hdf5_files.add_external_values(file, "theirs", secret),
        "own.nc: the values of /theirs are in another file, which is not opened",
    ),
    "virtual values": (
        lambda file, secret: hdf5_files.add_virtual_values(file, "theirs", secret),
        "own.nc: the values of /theirs are in another file, which is not opened",
    ),
    "ring": (lambda file, _: hdf5_files.add_ring(file), "own.nc: its groups nest more than 32 levels deep"),
    "soft link to a group": (
        lambda file, _: hdf5_files.add_soft_link(file, "again", "/"),
        "own.nc: /again is a link to a group, which may hold it",
    ),
    "huge chunks": (
        lambda file, _: hdf5_files.add_chunked(file, "huge", (1000, 1000, 1000)),
        "own.nc: /huge has chunks of 1000x1000x1000: it claims 4.0 GB of memory",
    ),
}


class Code:
    """Runs code when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def unpickle(store: Path, **changes: Any) -> None:
    edit(store / "t2m" / ".zarray", **changes)
    for chunk in (store / "t2m").glob("[0-9]*"):
        chunk.write_bytes(pickle.dumps(Code(store.parent / "ran")))


def unpickle_shards(store: Path) -> None:
    file = store / "t2m" / "zarr.json"
    inner = [{"name": "bytes"}, {"name": "numcodecs.pickle", "configuration": {}}]
    options = {"chunk_shape": [2, 3, 5], "codecs": inner, "index_codecs": [{"name": "bytes"}]}
    edit(file, codecs=[{"name": "sharding_indexed", "configuration": options}])


def list_outside(store: Path) -> None:
    content = json.loads((store / ".zmetadata").read_text())
    content["metadata"]["../theirs/.zarray"] = content["metadata"]["t2m/.zarray"]
    (store / ".zmetadata").write_text(json.dumps(content))


def list_pickle(store: Path) -> None:
    content = json.loads((store / ".zmetadata").read_text())
    content["metadata"]["t2m/.zarray"]["compressor"] = {"id": "pickle"}
    (store / ".zmetadata").write_text(json.dumps(content))


def list_otherwise(store: Path) -> None:
    edit(store / "t2m" / ".zarray", shape=[8, 60_000, 50_000], chunks=[8, 60_000, 50_000])


def replace_by_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def replace_by_device(file: Path) -> None:
    file.unlink()
    file.symlink_to("/dev/zero")


# Version of the format, what is done to a store, and what is said of it.
ZARR: dict[str, tuple[int, Callable[[Path], object], str]] = {
    "filter": (2, lambda store: unpickle(store, compressor=None, filters=[{"id": "pickle"}]), "the codec 'pickle'"),
    "compressor": (2, lambda store: unpickle(store, compressor={"id": "pickle"}, filters=None), "the codec 'pickle'"),
    "two filters": (
        2,
        lambda store: unpickle(
            store, dtype="|O", compressor=None, filters=[{"id": "vlen-utf8"}, {"id": "pickle"}], fill_value=""
        ),
        r"t2m/\.zarray: the codec 'pickle' is not used",
    ),
    "shards": (3, unpickle_shards, r"t2m/zarr\.json: the codec 'numcodecs\.pickle' is not used"),
    "listed": (2, list_pickle, r"\.zmetadata: the codec 'pickle' is not used"),
    "no name": (2, lambda store: edit(store / "t2m" / ".zarray", compressor={"id": 5}), "the codec '5' is not used"),
    "outside": (2, list_outside, r"\.zmetadata: it names '\.\./theirs/\.zarray', which is outside the store"),
    "two truths": (2, list_otherwise, "t2m has the shape .* it claims 96.0 GB of memory"),
    "pipe": (2, lambda store: replace_by_pipe(store / "t2m" / ".zattrs"), r"\.zattrs is not a regular file"),
    "pipe as chunk": (2, lambda store: replace_by_pipe(store / "time" / "0"), "time/0 is not a regular file"),
    "device": (2, lambda store: replace_by_device(store / "t2m" / ".zattrs"), r"\.zattrs is not a regular file"),
    "list": (2, lambda store: (store / "t2m" / ".zattrs").write_text("[]"), "it must hold a JSON object"),
    "depth": (2, lambda store: (store / "t2m" / ".zattrs").write_text("[" * 100_000), r"\.zattrs is damaged: maximum"),
    "years": (
        2,
        lambda store: [
            edit(store / "time" / ".zattrs", units="days since 99999999-01-01"),
            (store / ".zmetadata").unlink(),
        ],
        "a time is out of range",
    ),
}  # fmt: skip
