"""Whether every chunk of a Zarr array is there. The library reads a chunk that is not as fill values.

A chunk may be missing for two reasons: it was lost, or it held fill values only and the writer left it out, which is
the default of Zarr 3 (`write_empty_chunks=False`). Nothing in the store tells one from the other, so that the rule is:
every chunk of a field must be there. Land in a field of the sea is an exception where a caller allows it: a place whose
chunks are missing at all times, if a value that was not written is NaN. Coordinates are not subject to the rule: their
values are compared with what they must be.
"""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

from smoe.errors import DataError
from smoe.file_claims import excessive_claim
from smoe.integrity.inflation import check_inflation
from smoe.integrity.zarr_metadata import check_zarr_files

# Offset and length of an inner chunk that its shard does not hold.
_ABSENT = 2**64 - 1
# Bytes that a value of a coordinate takes while it is read, and a chunk in the list of those that are to be read.
_BYTES_PER_COORDINATE = 40
_BYTES_PER_CHUNK = 1000
# Attributes that decide what an array is.
_TEXTS = ("standard_name", "axis", "units", "calendar", "grid_mapping", "bounds", "coordinates", "positive", "cf_role")
# Missing chunks that are counted.
_MAX_MISSING = 10_000


def check_zarr_array(store: Path, name: str, *, may_begin_late: int = 0, may_have_mask: bool = False) -> None:
    """Refuses an array of which a chunk is missing or empty; in shards, of which an inner chunk is.

    Args:
        store: Folder of the group.
        name: Name of the array in it; versions 2 and 3 of the format.
        may_begin_late: Chunks may be missing whose first axis ends at or before this index, if missing values are NaN:
            accumulated fields have no value at the first times.
        may_have_mask: All chunks of a place, along the first axis, may be missing, if missing values are NaN.

    Raises:
        DataError: With the number of missing chunks and the first of them.
    """
    import zarr

    array: Any = zarr.open_group(store, mode="r")[name]
    folder = store / name
    outer = tuple(array.shards or array.chunks)
    is_nan = array.fill_value is not None and array.fill_value != array.fill_value
    late = may_begin_late if is_nan else 0
    sizes = {os.path.relpath(os.path.join(root, file), folder): os.path.getsize(os.path.join(root, file))
             for root, _, files in os.walk(folder) for file in files}  # fmt: skip
    _check_chunks(store, name, array, sum(sizes.values()))
    chunk_size = prod(outer) * array.dtype.itemsize
    masked = _places_without_chunks(array, outer, sizes) if may_have_mask and is_nan and array.shards is None else set()

    missing: list[str] = []
    for position in _positions(array.shape, outer):
        if len(missing) > _MAX_MISSING:
            break
        if (position and (position[0] + 1) * outer[0] <= late) or position[1:] in masked:
            continue
        key = _chunk_file(array, position)
        if not sizes.get(key):
            missing.append(f"{name}/{key}")
        elif array.shards is None and _uses_blosc(array):
            _check_blosc_lengths(folder / key, 0, sizes[key], chunk_size)
        elif array.shards is not None:
            missing += [f"{name}/{key} inner chunk {i}" for i in _absent_in_shard(array, folder / key, position)]
    if missing:
        raise DataError(
            f"{store}: {name} lacks {'at least ' if len(missing) > _MAX_MISSING else ''}{len(missing)} chunks of its "
            f"{_num_chunks(array.shape, outer)} chunk files, the first {missing[0]}, "
            "which would read as fill values; copy the store again, or, if its writer left out chunks of fill values, "
            "write it with write_empty_chunks=True"
        )


def _places_without_chunks(array: Any, outer: tuple[int, ...], sizes: dict[str, int]) -> set[tuple[int, ...]]:
    """Places, which are positions without that of the first axis, none of whose chunks was written.

    Empty if a place has a single chunk, which may have been lost, or if nothing was written at all.
    """
    if len(array.shape) < 3 or array.shape[0] <= outer[0]:
        return set()
    absent, written = set(), set()
    for position in _positions(array.shape, outer):
        (written if _chunk_file(array, position) in sizes else absent).add(position[1:])
    return absent - written if written else set()


def _chunk_file(array: Any, position: tuple[int, ...]) -> str:
    """File of a chunk, relative to the folder of its array."""
    return str(array.metadata.encode_chunk_key(position)).replace("/", os.sep)


def check_zarr_claims(store: Path) -> None:
    """Refuses a store whose metadata claim more memory than `smoe.file_claims` allows, or are of a wrong type.

    Call it before anything else opens the store: files that are none and codecs that run code are refused here.

    Coordinates are read whole when a store is opened, and of a field, whole chunks. Chunks that were never written take
    no room on the disk.

    Raises:
        DataError: with the array and its claim.
    """
    import zarr

    size = check_zarr_files(store)
    group = zarr.open_group(store, mode="r", use_consolidated=False)
    views = [group]
    listing = zarr.open_group(store, mode="r")
    if listing.metadata.consolidated_metadata is not None:
        # What is listed for all arrays need not be what each of them says, and either may be read.
        views.append(listing)
    for name, array in itertools.chain.from_iterable(view.arrays() for view in views):
        _check_chunks(store, name, array, size)
        _check_attributes(store, name, array)
        if len(array.shape) == 1:
            _check_line(store, name, array)
        if len(array.shape) < 2 and (reason := excessive_claim(size, prod(array.shape) * _BYTES_PER_COORDINATE)):
            raise DataError(f"{store}: {name} has {prod(array.shape):,} values: {reason}")


def _check_attributes(store: Path, name: str, array: Any) -> None:
    """Refuses attributes that must be texts and are not: in Zarr, an attribute can be anything."""
    for attribute in _TEXTS:
        value = array.attrs.get(attribute)
        if value is not None and not isinstance(value, str):
            raise DataError(f"{store}: the attribute {attribute} of {name} must be a text, got {str(value)[:100]}")


def _check_line(store: Path, name: str, array: Any) -> None:
    """Refuses a one-dimensional array with damaged chunks, and a coordinate without those of several values.

    The values of a coordinate differ: a writer that leaves out chunks of fill values leaves out one of a single value
    at most.
    """
    (length,), (chunk,) = array.shape, array.shards or array.chunks
    # Version 2 of the format has no names of dimensions; xarray keeps them in an attribute.
    names = getattr(array.metadata, "dimension_names", None) or array.attrs.get("_ARRAY_DIMENSIONS", ())
    is_coordinate = tuple(names) == (name,)
    for (position,) in _positions((length,), (chunk,)):
        path = store / name / str(array.metadata.encode_chunk_key((position,)))
        size = path.stat().st_size if path.is_file() else 0
        if size and array.shards is None and _uses_blosc(array):
            _check_blosc_lengths(path, 0, size, chunk * array.dtype.itemsize)
        if not size and is_coordinate and min(chunk, length - position * chunk) > 1:
            raise DataError(f"{store}: the coordinate {name} lacks the chunk {path.relative_to(store)}; copy it again")


def _check_chunks(store: Path, name: str, array: Any, size: int) -> None:
    shape, outer = tuple(array.shape), tuple(array.shards or array.chunks)
    for what, claimed in (
        ("its chunks", prod(outer) * array.dtype.itemsize),
        ("the list of its chunks", _num_chunks(shape, outer) * _BYTES_PER_CHUNK),
    ):
        if reason := excessive_claim(size, claimed):
            raise DataError(f"{store}: {name} has the shape {shape} in chunks of {outer}; {what}: {reason}")


def _num_chunks(shape: tuple[int, ...], chunks: tuple[int, ...]) -> int:
    return prod(-(-length // chunk) for length, chunk in zip(shape, chunks, strict=True))


def _uses_blosc(array: Any) -> bool:
    return any("blosc" in type(codec).__name__.lower() for codec in array.compressors)


def _check_blosc_lengths(path: Path, offset: int, length: int, chunk_size: int) -> None:
    """Compares the lengths in the header of a Blosc chunk with the file and the chunk: others would crash the library.

    Args:
        path: File of the chunk.
        offset: Where the chunk begins in the file.
        length: Bytes of the chunk in the file.
        chunk_size: Bytes of the chunk in memory; filters before the compressor make it smaller, not larger.
    """
    with path.open("rb") as file:
        file.seek(offset)
        header = file.read(min(16, length))
    content, _, declared = struct.unpack("<III", header[4:16]) if len(header) == 16 else (0, 0, 16)
    if length < declared:
        raise DataError(f"{path} is truncated: it declares {declared} bytes and has {length}; copy the store again")
    if content > chunk_size or declared < 16:
        raise DataError(
            f"{path} is damaged: it declares {content} bytes of content in {declared}, a chunk has {chunk_size}; copy "
            "the store again"
        )


def _positions(shape: tuple[int, ...], chunks: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    return itertools.product(*(range(-(-length // chunk)) for length, chunk in zip(shape, chunks, strict=True)))


def _absent_in_shard(array: Any, path: Path, position: tuple[int, ...]) -> list[tuple[int, ...]]:
    # A shard ends (or begins) with an index: offset and length of every inner chunk, 16 bytes each, then a checksum.
    codec = array.metadata.codecs[0]
    per_axis = [shard // chunk for shard, chunk in zip(array.shards, array.chunks, strict=True)]
    num_inner = prod(per_axis)
    codecs = [type(each).__name__ for each in codec.index_codecs]
    if codecs not in (["BytesCodec"], ["BytesCodec", "Crc32cCodec"]):
        raise DataError(f"{path}: its index of chunks is written by {', '.join(codecs)}, which cannot be checked")
    num_bytes = 16 * num_inner
    index_length = num_bytes + 4 * (len(codecs) - 1)
    length = path.stat().st_size
    if length < index_length:
        raise DataError(f"{path} is truncated: {length} bytes, its index alone has {index_length}; copy it again")
    with path.open("rb") as file:
        file.seek(0 if codec.index_location.value == "start" else length - index_length)
        entries = list(struct.iter_unpack("<QQ", file.read(num_bytes)))

    absent = []
    for place, (offset, size) in zip(itertools.product(*map(range, per_axis)), entries, strict=True):
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
        elif _uses_blosc(array):
            _check_blosc_lengths(path, offset, size, prod(array.chunks) * array.dtype.itemsize)
        else:
            check_inflation(path, length, offset, size)
    return absent
