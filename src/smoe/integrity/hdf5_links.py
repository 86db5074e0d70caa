"""Whether an HDF5 file, such as one of NetCDF-4, has other files opened, nests without end, or grows in memory.

Links and datasets of HDF5 can name files anywhere: external links, external storage and virtual datasets. The library
follows them when it opens or reads a file. NetCDF-4 has no use for them.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

from smoe.errors import DataError
from smoe.file_claims import excessive_claim, largest_claim
from smoe.integrity.inflation import MOST_TIMES_DEFLATE, check_inflated_bytes

HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"

# Kinds of links and objects, and the layout of a virtual dataset, as the headers of HDF5 number them.
_HARD, _SOFT = 0, 1
_GROUP, _DATASET = 2, 5
_VIRTUAL = 3
_BY_NAME, _NATIVE_ORDER = 0, 2
# Groups of NetCDF-4 nest a few levels deep. A group that holds itself has no end, and the library none of its own.
_MOST_LEVELS = 32
_MOST_OBJECTS = 100_000
_MOST_DIMENSIONS = 32

_Visit = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64, ctypes.c_char_p, ctypes.POINTER(ctypes.c_int), ctypes.c_void_p)
_VisitChunk = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_uint64), ctypes.c_uint, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p
)


def check_hdf5_links(path: Path) -> None:
    """Refuses a file that has others opened, or whose chunks take more memory than `smoe.file_claims` allows.

    Raises:
        DataError: With the name of the link or dataset.
    """
    from xarray.backends.netCDF4_ import NETCDF4_PYTHON_LOCK

    library = _library()
    with NETCDF4_PYTHON_LOCK:
        file = library.H5Fopen(os.fsencode(path), 0, 0)
        if file < 0:
            raise DataError(
                f"{path}: it cannot be read, the file is damaged or incomplete (no whole HDF5 file); copy or download "
                "it again"
            )
        try:
            _walk(library, path, file)
        finally:
            library.H5Fclose(file)


def _walk(library: ctypes.CDLL, path: Path, file: int) -> None:
    groups: list[tuple[bytes, int]] = [(b"/", 0)]
    num_objects = 0
    while groups:
        group, level = groups.pop()
        if level > _MOST_LEVELS:
            raise DataError(f"{path}: its groups nest more than {_MOST_LEVELS} levels deep; it is damaged")
        for name, kind in _links(library, path, file, group):
            num_objects += 1
            if num_objects > _MOST_OBJECTS:
                raise DataError(f"{path} has more than {_MOST_OBJECTS:,} variables and groups; it is damaged")
            where = group.rstrip(b"/") + b"/" + name
            if kind not in (_HARD, _SOFT):
                raise DataError(f"{path}: {_text(where)} is a link to another file, which is not followed; copy it in")
            with _closing(library.H5Oopen(file, where, 0), library.H5Oclose) as found:
                what = library.H5Iget_type(found) if found >= 0 else None
                if what == _GROUP and kind == _SOFT:
                    raise DataError(f"{path}: {_text(where)} is a link to a group, which may hold it; copy the group")
                if what == _GROUP:
                    groups.append((where, level + 1))
                elif what == _DATASET:
                    _check_dataset(library, path, _text(where), found)


def _links(library: ctypes.CDLL, path: Path, file: int, group: bytes) -> list[tuple[bytes, int]]:
    """Names and kinds of the links of a group."""
    found: list[tuple[bytes, int]] = []

    def keep(_group: int, name: bytes, kind: Any, _data: Any) -> int:
        # The kind is the first number of what is said about a link, in every version of the library.
        found.append((name, kind[0]))
        return 1 if len(found) > _MOST_OBJECTS else 0

    with _closing(library.H5Oopen(file, group, 0), library.H5Oclose) as opened:
        if opened < 0 or library.H5Literate_any(opened, _BY_NAME, _NATIVE_ORDER, None, _Visit(keep), None) < 0:
            raise DataError(f"{path}: its group {_text(group)} cannot be read; copy or download it again")
    return found


def _check_dataset(library: ctypes.CDLL, path: Path, name: str, dataset: int) -> None:
    with _closing(library.H5Dget_create_plist(dataset), library.H5Pclose) as properties:
        if library.H5Pget_layout(properties) == _VIRTUAL or library.H5Pget_external_count(properties) > 0:
            raise DataError(f"{path}: the values of {name} are in another file, which is not opened; copy them in")
        lengths = (ctypes.c_uint64 * _MOST_DIMENSIONS)()
        num_dimensions = library.H5Pget_chunk(properties, _MOST_DIMENSIONS, lengths)
    if num_dimensions > 0:
        with _closing(library.H5Dget_type(dataset), library.H5Tclose) as kind:
            chunk = prod(lengths[:num_dimensions]) * library.H5Tget_size(kind)
        if reason := excessive_claim(path, chunk):
            raise DataError(f"{path}: {name} has chunks of {'x'.join(map(str, lengths[:num_dimensions]))}: {reason}")
        _check_inflation(library, path, name, dataset, num_dimensions)


def _check_inflation(library: ctypes.CDLL, path: Path, name: str, dataset: int, num_dimensions: int) -> None:
    """Refuses chunks that deflate makes larger than `smoe.file_claims` allows; the library does not look."""
    size = path.stat().st_size
    smallest = largest_claim(size) // MOST_TIMES_DEFLATE
    if library.H5Dget_storage_size(dataset) <= smallest:
        return
    large: list[tuple[tuple[int, ...], int]] = []

    def keep(offset: Any, _mask: int, _address: int, num_bytes: int, _data: Any) -> int:
        if num_bytes > smallest:
            large.append((tuple(offset[:num_dimensions]), num_bytes))
        return 0

    if library.H5Dchunk_iter(dataset, 0, _VisitChunk(keep), None) < 0:
        raise DataError(f"{path}: the chunks of {name} cannot be listed; copy or download it again")
    for place, num_bytes in large:
        if num_bytes > size:
            raise DataError(f"{path}: a chunk of {name} has {num_bytes:,} bytes, but the file has {size:,}")
        content, mask = ctypes.create_string_buffer(num_bytes), ctypes.c_uint32()
        where = (ctypes.c_uint64 * num_dimensions)(*place)
        if library.H5Dread_chunk_any(dataset, 0, where, ctypes.byref(mask), content) < 0:
            raise DataError(f"{path}: a chunk of {name} cannot be read; copy or download it again")
        check_inflated_bytes(f"{path}: a chunk of {name}", content.raw, size)


@contextmanager
def _closing(identifier: int, close: Any) -> Iterator[int]:
    try:
        yield identifier
    finally:
        if identifier >= 0:
            close(identifier)


def _text(name: bytes) -> str:
    return ascii(name.decode("utf-8", "replace"))[1:-1][:200]


@functools.cache
def _library() -> ctypes.CDLL:
    """The HDF5 library that netCDF4 uses: symbols of what a module is linked with are found through the module.

    Raises:
        DataError: If they are not, because the module holds the library in itself.
    """
    import netCDF4

    library = ctypes.CDLL(netCDF4._netCDF4.__file__)  # type: ignore[attr-defined]
    try:
        # Library 1.12 gave the function a number, and kept the order of its arguments.
        iterate = library.H5Literate2 if _has(library, "H5Literate2") else library.H5Literate
        iterate.argtypes = (
            ctypes.c_int64, ctypes.c_int, ctypes.c_int, ctypes.c_void_p, _Visit, ctypes.c_void_p
        )  # fmt: skip
        library.H5Literate_any = iterate  # type: ignore[attr-defined]
        # Library 2 did the same, and added an argument to the second.
        read = library.H5Dread_chunk1 if _has(library, "H5Dread_chunk1") else library.H5Dread_chunk
        read.argtypes = (ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        library.H5Dread_chunk_any = read  # type: ignore[attr-defined]
        for name, result, arguments in (
            ("H5Fopen", ctypes.c_int64, (ctypes.c_char_p, ctypes.c_uint, ctypes.c_int64)),
            ("H5Oopen", ctypes.c_int64, (ctypes.c_int64, ctypes.c_char_p, ctypes.c_int64)),
            ("H5Dget_create_plist", ctypes.c_int64, (ctypes.c_int64,)),
            ("H5Dget_type", ctypes.c_int64, (ctypes.c_int64,)),
            ("H5Tget_size", ctypes.c_size_t, (ctypes.c_int64,)),
            ("H5Pget_chunk", ctypes.c_int, (ctypes.c_int64, ctypes.c_int, ctypes.c_void_p)),
            *(
                (name, ctypes.c_int, (ctypes.c_int64,))
                for name in ("H5Fclose", "H5Oclose", "H5Pclose", "H5Tclose", "H5Iget_type", "H5Pget_layout")
            ),
            ("H5Pget_external_count", ctypes.c_int, (ctypes.c_int64,)),
            ("H5Dget_storage_size", ctypes.c_uint64, (ctypes.c_int64,)),
            ("H5Dchunk_iter", ctypes.c_int, (ctypes.c_int64, ctypes.c_int64, _VisitChunk, ctypes.c_void_p)),
        ):
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        # Otherwise the library prints what it finds wrong.
        library.H5Eset_auto2.argtypes = (ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)
        library.H5Eset_auto2(0, None, None)
    except AttributeError as error:
        raise DataError(
            f"NetCDF-4 files cannot be checked for links to other files: this build of netCDF4 hides its HDF5 library "
            f"({error}); pip install --force-reinstall netcdf4"
        ) from error
    return library


def _has(library: ctypes.CDLL, name: str) -> bool:
    try:
        return bool(getattr(library, name))
    except AttributeError:
        return False
