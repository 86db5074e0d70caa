"""Whether a NetCDF file has the length that it must have, and is one file.

The library reads a short classic file without complaint, and follows links of NetCDF-4 to files anywhere.
"""

from __future__ import annotations

import stat
import struct
from math import prod
from pathlib import Path
from typing import BinaryIO

from smoe.errors import DataError
from smoe.file_claims import excessive_claim
from smoe.integrity.hdf5_links import HDF5_SIGNATURE, check_hdf5_links

_DIMENSION, _VARIABLE, _ATTRIBUTE = 10, 11, 12
# Bytes of one value by nc_type: byte, char, short, int, float, double, then the unsigned and 64-bit ones of CDF-5.
_TYPE_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 4, 6: 8, 7: 1, 8: 2, 9: 4, 10: 8, 11: 8}

# Bytes that a value of a coordinate takes while it is read: as stored, decoded, in an index, and compared.
_BYTES_PER_COORDINATE = 40


def check_netcdf_file(path: Path) -> None:
    """Refuses a file that is empty, no NetCDF at all, or a classic file (CDF-1, 2 or 5) shorter than its header says.

    NetCDF-4 is HDF5, whose library compares the length itself when it opens the file. One that has other files opened
    is refused. Call it before anything else opens the file.

    Raises:
        DataError: with both lengths.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise DataError(f"{path} is not a regular file, but a pipe, device or folder")
    length = status.st_size
    if length == 0:
        raise DataError(f"{path} is empty; copy or download it again")
    with path.open("rb") as file:
        start = file.read(8)
        if start == HDF5_SIGNATURE:
            check_hdf5_links(path)
            return
        if start[:3] != b"CDF" or start[3:4] not in (b"\x01", b"\x02", b"\x05"):
            raise DataError(f"{path} is not a NetCDF file: it begins with {start!r}; copy or download it again")
        file.seek(0)
        try:
            expected = _declared_length(file, length)
        except (EOFError, struct.error):
            raise DataError(f"{path} ends inside its header after {length} bytes; copy or download it again") from None
        except _HeaderError as error:
            raise DataError(f"{path}: {error}") from None
    if length < expected:
        raise DataError(
            f"{path} is truncated: its header declares {expected} bytes, it has {length} "
            f"({length / expected:.0%}); copy or download it again"
        )


def check_netcdf_coordinates(path: Path) -> None:
    """Refuses a file whose coordinates would take more memory than `smoe.file_claims` allows.

    Coordinates are read whole when a file is opened; of fields, only what is asked for. In NetCDF-4, values that were
    never written take no room in the file.

    Raises:
        DataError: with the dimension and its claim.
    """
    from xarray.backends import NetCDF4DataStore

    # By xarray, whose lock other threads that read by it respect. Nothing but the header is read.
    store = NetCDF4DataStore.open(path)
    try:
        names = store.get_variables()
        sizes = {name: size for name, size in store.get_dimensions().items() if name in names}
    finally:
        store.close()
    for name, size in sizes.items():
        if reason := excessive_claim(path, size * _BYTES_PER_COORDINATE):
            raise DataError(f"{path}: its dimension {name} has {size:,} values: {reason}")


class _HeaderError(Exception):
    """The header is not as the format says, or does not say how long the file is."""


def _damaged(what: str) -> _HeaderError:
    return _HeaderError(f"its header is damaged ({what}); copy or download it again")


class _HeaderReader:
    """Big-endian numbers of a classic header; CDF-5 counts and sizes have 8 bytes, CDF-2 and 5 offsets have 8."""

    def __init__(self, file: BinaryIO, length: int):
        self.file, self.length = file, length
        self.version = file.read(4)[3]

    def skip(self, count: int) -> None:
        # Padded to four bytes. Beyond the end of the file, seek would not complain.
        target = self.file.tell() + count + (-count) % 4
        if target > self.length:
            raise EOFError
        self.file.seek(target)

    def number(self, size: int) -> int:
        data = self.file.read(size)
        if len(data) < size:
            raise EOFError
        return struct.unpack(">Q" if size == 8 else ">I", data)[0]

    def count(self) -> int:
        return self.number(8 if self.version == 5 else 4)

    def offset(self) -> int:
        return self.number(4 if self.version == 1 else 8)

    def list_length(self, expected_tag: int) -> int:
        tag, length = self.number(4), self.count()
        if tag not in (0, expected_tag) or (tag == 0 and length != 0):
            raise _damaged(f"list tag {tag} with {length} entries where {expected_tag} belongs")
        return length

    def type_size(self) -> int:
        kind = self.number(4)
        if kind not in _TYPE_SIZES:
            raise _damaged(f"no type has the number {kind}")
        return _TYPE_SIZES[kind]

    def skip_attributes(self) -> None:
        for _ in range(self.list_length(_ATTRIBUTE)):
            self.skip(self.count())
            size = self.type_size()
            self.skip(size * self.count())


def _declared_length(file: BinaryIO, length: int) -> int:
    # The file format specification: magic, numrecs, dimensions, attributes, variables with the offset of their data.
    header = _HeaderReader(file, length)
    num_records = header.count()
    dimensions = []
    for _ in range(header.list_length(_DIMENSION)):
        header.skip(header.count())
        dimensions.append(header.count())
    header.skip_attributes()

    fixed_ends, records = [0], []
    for _ in range(header.list_length(_VARIABLE)):
        header.skip(header.count())
        ids = [header.count() for _ in range(header.count())]
        if any(index >= len(dimensions) for index in ids):
            raise _damaged(f"a variable has dimension {max(ids)} of {len(dimensions)}")
        header.skip_attributes()
        size = header.type_size()
        header.count()  # vsize, which cannot hold large sizes in CDF-1 and 2; the dimensions say it exactly
        begin = header.offset()
        # The record dimension has length 0 and comes first.
        if ids and dimensions[ids[0]] == 0:
            records.append((begin, size * prod(dimensions[index] for index in ids[1:])))
        else:
            fixed_ends.append(begin + size * prod(dimensions[index] for index in ids))

    if records and num_records == (2**64 - 1 if header.version == 5 else 2**32 - 1):
        raise _HeaderError("it was written as a stream, without the number of its records; copy it by nccopy")
    # Records of all variables follow each other, each padded to four bytes, unless there is one such variable only.
    sizes = [size for _, size in records]
    stride = sizes[0] if len(sizes) == 1 else sum(size + (-size) % 4 for size in sizes)
    record_ends = [begin + (num_records - 1) * stride + size for begin, size in records if num_records]
    # The padding after the very last value may be missing; the values may not.
    return max(file.tell(), *fixed_ends, *record_ends)
