"""Chunks that decompress to more than they may take."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path

import numcodecs
import pytest

from gridded_files import regional
from hdf5_files import replace_chunk
from smoe import file_claims
from smoe.errors import DataError
from smoe.gridded.open_fields import open_fields
from smoe.integrity.inflation import check_inflation

ZEROS = bytes(30_000_000)
KINDS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zlib": zlib.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zstd": lambda content: bytes(numcodecs.Zstd().encode(content)),
}


@pytest.fixture(autouse=True)
def _small_allowance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_claims, "ALLOWANCE", 1_000_000)


@pytest.mark.parametrize("kind", KINDS)
def test_what_becomes_too_large_is_refused_and_what_does_not_is_not(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "chunk"
    file.write_bytes(KINDS[kind](ZEROS))
    with pytest.raises(DataError, match=r"chunk is refused: its content is larger than it may be: it claims 0.0 GB"):
        check_inflation(file, file.stat().st_size)
    check_inflation(file, 100_000_000)
    file.write_bytes(KINDS[kind](ZEROS[:500_000]))
    check_inflation(file, file.stat().st_size)


@pytest.mark.parametrize("kind", ["gzip", "bz2", "xz"])
def test_a_stream_that_follows_another_counts(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "chunk"
    file.write_bytes(KINDS[kind](b"harmless") + KINDS[kind](ZEROS))
    with pytest.raises(DataError, match="chunk is refused"):
        check_inflation(file, file.stat().st_size)


def test_a_part_of_a_file_is_looked_at(tmp_path: Path) -> None:
    file, chunk = tmp_path / "shard", zlib.compress(ZEROS)
    file.write_bytes(b"before" + chunk + b"after")
    check_inflation(file, file.stat().st_size)
    with pytest.raises(DataError, match="shard is refused"):
        check_inflation(file, file.stat().st_size, 6, len(chunk))


@pytest.mark.parametrize("content", [b"", b"x", b"BZh", b"\x1f\x8b" + bytes(100), b"\x28\xb5\x2f\xfd", bytes(50_000)])
def test_bytes_that_are_not_compressed_or_damaged_are_left_to_the_reader(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "chunk"
    file.write_bytes(content)
    check_inflation(file, len(content))


def test_a_zarr_store_with_such_a_chunk(tmp_path: Path) -> None:
    store = tmp_path / "own.zarr"
    compressor = numcodecs.Zlib()
    regional(8).to_zarr(store, zarr_format=2, encoding={"t2m": {"compressors": [compressor]}})  # type: ignore[call-overload]
    open_fields(store).close()
    chunk = next(path for path in (store / "t2m").iterdir() if not path.name.startswith("."))
    chunk.write_bytes(zlib.compress(ZEROS))
    with pytest.raises(DataError, match=f"t2m/{chunk.name} is refused: its content is larger than it may be"):
        open_fields(store)


def test_a_netcdf_file_with_such_a_chunk(tmp_path: Path) -> None:
    file = tmp_path / "own.nc"
    regional(8).to_netcdf(file, encoding={"t2m": {"zlib": True, "chunksizes": (8, 3, 5)}})
    open_fields(file).close()
    replace_chunk(file, "t2m", zlib.compress(ZEROS))
    with pytest.raises(DataError, match=r"own.nc: a chunk of /t2m is refused: its content is larger than it may be"):
        open_fields(file)
