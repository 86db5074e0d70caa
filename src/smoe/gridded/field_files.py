"""Files of fields as raw little-endian float32, and checksums of their parts."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np

from smoe.errors import DataError

DTYPE = np.dtype("<f4")
_BYTES_PER_PIECE = 1 << 24


def crc32_of_rows(path: Path, offset: int, num_bytes: int) -> int:
    """The checksum of a part of a file, read in pieces."""
    crc = 0
    with path.open("rb") as file:
        file.seek(offset)
        while num_bytes:
            piece = file.read(min(num_bytes, _BYTES_PER_PIECE))
            if not piece:
                raise DataError(f"{path} ends {num_bytes:,} bytes too early")
            crc = zlib.crc32(piece, crc)
            num_bytes -= len(piece)
    return crc
