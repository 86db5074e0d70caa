"""Zarr stores with pipes, devices, codecs that run code, and names outside the store."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("zarr")
pytest.importorskip("xarray")

from gridded_files import regional
from smoe.errors import DataError
from smoe.gridded.field_source import FieldSource
from smoe.gridded.open_fields import open_fields
from smoe.meshes import read_mesh


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


HOSTILE: dict[str, tuple[int, Callable[[Path], object], str]] = {
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


@pytest.mark.parametrize("name", HOSTILE)
def test_it_is_refused_with_the_name(tmp_path: Path, name: str) -> None:
    version, spoil, message = HOSTILE[name]
    store = tmp_path / "own.zarr"
    regional(8).to_zarr(store, zarr_format=version, consolidated=version == 2)  # type: ignore[call-overload]
    spoil(store)

    def read() -> None:
        with open_fields(store) as data:
            FieldSource(data).read(np.arange(8))

    with pytest.raises(DataError, match=message):
        read()
    with pytest.raises(DataError):
        read_mesh(store)
    assert not (tmp_path / "ran").exists()


def test_inner_chunks_of_shards_that_lie_about_their_length(tmp_path: Path) -> None:
    from zarr.codecs import BloscCodec

    store = tmp_path / "own.zarr"
    encoding = {"t2m": {"chunks": (2, 3, 5), "shards": (8, 3, 5), "compressors": [BloscCodec()]}}
    regional(8).to_zarr(store, zarr_format=3, consolidated=False, encoding=encoding)
    (shard,) = (path for path in (store / "t2m" / "c").rglob("*") if path.is_file())
    content = bytearray(shard.read_bytes())
    content[12:16] = (2**20).to_bytes(4, "little")
    shard.write_bytes(content)
    with pytest.raises(DataError, match="is truncated: it declares 1048576 bytes and has"):
        open_fields(store)
