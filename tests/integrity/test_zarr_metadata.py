"""Zarr stores with pipes, devices, codecs that run code, and names outside the store."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("zarr")
pytest.importorskip("netCDF4")
pytest.importorskip("xarray")

from gridded_files import regional
from hostile_files import ZARR, write_zarr
from smoe.errors import DataError
from smoe.gridded.field_source import FieldSource
from smoe.gridded.open_fields import open_fields
from smoe.meshes import read_mesh


@pytest.mark.parametrize("name", ZARR)
def test_it_is_refused_with_the_name(tmp_path: Path, name: str) -> None:
    store = tmp_path / "own.zarr"
    message = write_zarr(store, name)

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
