"""Whether every chunk of a Zarr array is there. The library reads a chunk that is not as fill values.

A chunk may be missing for two reasons: it was lost, or it held fill values only and the writer left it out, which is
the default of Zarr 3 (`write_empty_chunks=False`). Nothing in the store tells one from the other, so that the rule is:
every chunk of a field must be there. Coordinates are not subject to it: their values are compared with what they must
be.
"""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from smoe.errors import DataError

# Offset and length of an inner chunk that its shard does not hold.
_ABSENT = 2**64 - 1


def check_zarr_array(store: Path, name: str, *, may_begin_late: int = 0) -> None:
    """Refuses an array of which a chunk is missing or empty; in shards, of which an inner chunk is.

    Args:
        store: Folder of the group.
        name: Of the array in it; versions 2 and 3 of the format.
        may_begin_late: Chunks may be missing whose first axis ends at or before this index, if missing values are NaN:
            accumulated fields have no value at the first times.

    Raises:
        DataError: with the number of missing chunks and the first of them.
    """
    import zarr

    array: Any = zarr.open_group(store, mode="r")[name]
    folder = store / name
    outer = tuple(array.shards or array.chunks)
    late = may_begin_late if array.fill_value is not None and array.fill_value != array.fill_value else 0
    sizes = {os.path.relpath(os.path.join(root, file), folder): os.path.getsize(os.path.join(root, file))
             for root, _, files in os.walk(folder) for file in files}  # fmt: skip

    num_chunks, missing = 0, []
    for position in _positions(array.shape, outer):
        num_chunks += 1
        key = str(array.metadata.encode_chunk_key(position)).replace("/", os.sep)
        if position and (position[0] + 1) * outer[0] <= late:
            continue
        if not sizes.get(key):
            missing.append(f"{name}/{key}")
        elif array.shards is None and _uses_blosc(array):
            _check_blosc_length(folder / key, sizes[key])
        elif array.shards is not None:
            missing += [f"{name}/{key} inner chunk {i}" for i in _absent_in_shard(array, folder / key, position)]
    if missing:
        raise DataError(
            f"{store}: {name} lacks {len(missing)} chunks of its {num_chunks} chunk files, the first {missing[0]}, "
            "which would read as fill values; copy the store again, or, if its writer left out chunks of fill values, "
            "write it with write_empty_chunks=True"
        )


def _uses_blosc(array: Any) -> bool:
    return any("blosc" in type(codec).__name__.lower() for codec in array.compressors)


def _check_blosc_length(path: Path, length: int) -> None:
    """Compares the length in the header of a Blosc chunk with the file: a short one would crash the library."""
    with path.open("rb") as file:
        header = file.read(16)
    declared = struct.unpack("<I", header[12:16])[0] if len(header) == 16 else 16
    if length < declared:
        raise DataError(f"{path} is truncated: it declares {declared} bytes and has {length}; copy the store again")


def _positions(shape: tuple[int, ...], chunks: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    return itertools.product(*(range(-(-length // chunk)) for length, chunk in zip(shape, chunks, strict=True)))


def _absent_in_shard(array: Any, path: Path, position: tuple[int, ...]) -> list[tuple[int, ...]]:
    # A shard ends (or begins) with an index: offset and length of every inner chunk, 16 bytes each, then a checksum.
    codec = array.metadata.codecs[0]
    per_axis = [shard // chunk for shard, chunk in zip(array.shards, array.chunks, strict=True)]
    inner = list(itertools.product(*map(range, per_axis)))
    codecs = [type(each).__name__ for each in codec.index_codecs]
    if codecs not in (["BytesCodec"], ["BytesCodec", "Crc32cCodec"]):
        raise DataError(f"{path}: its index of chunks is written by {', '.join(codecs)}, which cannot be checked")
    num_bytes = 16 * len(inner)
    index_length = num_bytes + 4 * (len(codecs) - 1)
    length = path.stat().st_size
    if length < index_length:
        raise DataError(f"{path} is truncated: {length} bytes, its index alone has {index_length}; copy it again")
    with path.open("rb") as file:
        file.seek(0 if codec.index_location.value == "start" else length - index_length)
        entries = list(struct.iter_unpack("<QQ", file.read(num_bytes)))

    absent = []
    for place, (offset, size) in zip(inner, entries, strict=True):
        starts = [
            shard * outer + chunk * width
            for shard, outer, chunk, width in zip(position, array.shards, place, array.chunks, strict=True)
        ]
        # The last shard of an axis reaches beyond the array; what lies there was never written.
        if any(start >= end for start, end in zip(starts, array.shape, strict=True)):
            continue
        if offset == _ABSENT and size == _ABSENT:
            absent.append(place)
        elif offset + size > length:
            raise DataError(f"{path} is truncated: inner chunk {place} ends beyond its {length} bytes; copy it again")
    return absent
