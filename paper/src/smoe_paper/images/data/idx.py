"""Reads files in the idx format of MNIST and Fashion-MNIST.

A file holds two zero bytes, the type of the values, the number of dimensions, each dimension as a big-endian 32-bit
integer, and then the values with the last dimension fastest.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from smoe.errors import DataError
from smoe_paper.images.data.whole_files import read_content

_UNSIGNED_BYTE = 0x08
_TYPES = {0x08: "uint8", 0x09: "int8", 0x0B: "int16", 0x0C: "int32", 0x0D: "float32", 0x0E: "float64"}


def read_idx(path: Path, num_dimensions: int) -> np.ndarray:
    """Returns the values of an idx file of unsigned bytes, compressed by gzip or not.

    Args:
        path: File to read.
        num_dimensions: Required number of dimensions: 3 for images `(N, H, W)`, 1 for labels `(N,)`.

    Raises:
        DataError: If the file has another format or another length than its header states.
    """
    return parse_idx(read_content(path), path, num_dimensions)


def parse_idx(content: bytes, path: Path, num_dimensions: int) -> np.ndarray:
    """Returns the values of the content of a file; `path` appears in error messages."""
    if len(content) < 4 or content[0] or content[1] or content[2] not in _TYPES:
        raise DataError(
            f"{path} is not an idx file: it begins with {content[:4].hex(' ') or 'nothing'}, not with 00 00 08 "
            f"{num_dimensions:02x}; is it of another format?"
        )
    if content[2] != _UNSIGNED_BYTE:
        raise DataError(f"{path} holds values of type {_TYPES[content[2]]}; images and labels are uint8")
    if content[3] != num_dimensions:
        kind = {1: "labels", 3: "images"}.get(num_dimensions, "values")
        raise DataError(
            f"{path} has {content[3]} dimensions, but {kind} have {num_dimensions}: were images and labels exchanged?"
        )
    header = 4 + 4 * num_dimensions
    if len(content) < header:
        raise DataError(f"{path} ends within its header, after {len(content)} bytes; get the file again")
    # Python integers: a product of three 32-bit numbers from a damaged header must not wrap.
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", num_dimensions, offset=4))
    if 0 in shape:
        raise DataError(f"{path} holds nothing: its shape is {shape}")
    expected = header + math.prod(shape)
    if len(content) != expected:
        raise DataError(
            f"{path} has {len(content):,} bytes, but its header says {' x '.join(map(str, shape))}, which is "
            f"{expected:,}: the file is {'cut off' if len(content) < expected else 'too long'}; get it again"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)
