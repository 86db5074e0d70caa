"""HDF5 files that lead to others, made by the library that netCDF4 uses: netCDF4 itself does not write such files."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import netCDF4

_ID = ctypes.c_int64
_READ_AND_WRITE = 1
_SHAPE = (8, 3, 5)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[ctypes.CDLL, int]]:
    library = ctypes.CDLL(netCDF4._netCDF4.__file__)  # type: ignore[attr-defined]
    for name in ("H5Fopen", "H5Screate_simple", "H5Pcreate", "H5Dcreate2", "H5Gcreate2"):
        getattr(library, name).restype = _ID
    file = library.H5Fopen(os.fsencode(path), _READ_AND_WRITE, _ID(0))
    assert file >= 0
    try:
        yield library, file
    finally:
        assert library.H5Fclose(_ID(file)) >= 0


def add_external_link(path: Path, name: str, target: Path, inner: str = "/") -> None:
    """Adds a link to an object of another file."""
    with _opened(path) as (library, file):
        assert (
            library.H5Lcreate_external(os.fsencode(target), inner.encode(), _ID(file), name.encode(), _ID(0), _ID(0))
            >= 0
        )


def add_soft_link(path: Path, name: str, target: str) -> None:
    """Adds a link to a path of the same file."""
    with _opened(path) as (library, file):
        assert library.H5Lcreate_soft(target.encode(), _ID(file), name.encode(), _ID(0), _ID(0)) >= 0


def add_ring(path: Path) -> None:
    """Adds a group that holds itself, twice."""
    with _opened(path) as (library, file):
        group = library.H5Gcreate2(_ID(file), b"ring", _ID(0), _ID(0), _ID(0))
        for name in (b"ring/one", b"ring/two"):
            assert library.H5Lcreate_hard(_ID(file), b"ring", _ID(file), name, _ID(0), _ID(0)) >= 0
        library.H5Gclose(_ID(group))


def add_external_values(path: Path, name: str, values: Path) -> None:
    """Adds a dataset of float32 whose values are those of a plain file."""

    def set_values(library: ctypes.CDLL, properties: int) -> None:
        size = ctypes.c_uint64(4 * 8 * 3 * 5)
        assert library.H5Pset_external(_ID(properties), os.fsencode(values), ctypes.c_int64(0), size) >= 0

    _add_dataset(path, name, set_values)


def add_virtual_values(path: Path, name: str, source: Path) -> None:
    """Adds a virtual dataset of float32, whose values are those of a dataset of the same name in another file."""

    def set_values(library: ctypes.CDLL, properties: int) -> None:
        space = _space(library)
        arguments = (_ID(space), os.fsencode(source), name.encode(), _ID(space))
        assert library.H5Pset_virtual(_ID(properties), *arguments) >= 0
        library.H5Sclose(_ID(space))

    _add_dataset(path, name, set_values)


def add_chunked(path: Path, name: str, chunk: tuple[int, int, int]) -> None:
    """Adds a dataset of float32 with chunks that are larger than it."""

    def set_chunk(library: ctypes.CDLL, properties: int) -> None:
        assert library.H5Pset_chunk(_ID(properties), 3, (ctypes.c_uint64 * 3)(*chunk)) >= 0

    _add_dataset(path, name, set_chunk, is_unlimited=True)


def _space(library: ctypes.CDLL, *, is_unlimited: bool = False) -> int:
    most = (ctypes.c_uint64 * 3)(*(2**64 - 1 if is_unlimited else length for length in _SHAPE))
    return library.H5Screate_simple(3, (ctypes.c_uint64 * 3)(*_SHAPE), most)


def _add_dataset(path: Path, name: str, configure: object, *, is_unlimited: bool = False) -> None:
    with _opened(path) as (library, file):
        kind = _ID.in_dll(library, "H5T_IEEE_F32LE_g").value
        space = _space(library, is_unlimited=is_unlimited)
        properties = library.H5Pcreate(_ID(_ID.in_dll(library, "H5P_CLS_DATASET_CREATE_ID_g").value))
        configure(library, properties)  # type: ignore[operator]
        arguments = (_ID(kind), _ID(space), _ID(0), _ID(properties), _ID(0))
        dataset = library.H5Dcreate2(_ID(file), name.encode(), *arguments)
        assert dataset >= 0
        library.H5Dclose(_ID(dataset))
        library.H5Pclose(_ID(properties))
        library.H5Sclose(_ID(space))


def replace_chunk(path: Path, name: str, content: bytes, num_dimensions: int = 3) -> None:
    """Writes the compressed bytes of the first chunk of a dataset, whatever they are."""
    with _opened(path) as (library, file):
        library.H5Dopen2.restype = _ID
        dataset = library.H5Dopen2(_ID(file), name.encode(), _ID(0))
        offset = (ctypes.c_uint64 * num_dimensions)()
        size = ctypes.c_size_t(len(content))
        assert library.H5Dwrite_chunk(_ID(dataset), _ID(0), ctypes.c_uint32(0), offset, size, content) >= 0
        library.H5Dclose(_ID(dataset))
