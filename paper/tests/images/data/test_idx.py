"""idx files: what is read, and what is said of files that cannot be."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from image_files import idx_bytes
from smoe.errors import DataError
from smoe_paper.images.data import parse_idx, read_content

VALUES = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)


@pytest.mark.parametrize("compressed", [False, True])
def test_reads(tmp_path, compressed):
    content = idx_bytes(VALUES)
    # By its content, not by its name.
    path = tmp_path / "images"
    path.write_bytes(gzip.compress(content) if compressed else content)
    np.testing.assert_array_equal(parse_idx(read_content(path), path, 3), VALUES)


def test_the_format_by_hand(tmp_path):
    path = tmp_path / "labels"
    path.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 0, 9]))
    assert parse_idx(read_content(path), path, 1).tolist() == [7, 0, 9]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not an idx file: it begins with nothing"),
        (b"\x89PNG\r\n", "is not an idx file: it begins with 89 50 4e 47, not with 00 00 08 03"),
        (bytes([0, 0, 13, 3]), "holds values of type float32; images and labels are uint8"),
        (idx_bytes(VALUES[0, 0]), "has 1 dimensions, but images have 3: were images and labels exchanged?"),
        (idx_bytes(VALUES)[:10], "ends within its header, after 10 bytes"),
        (idx_bytes(VALUES)[:-1], "has 39 bytes, but its header says 2 x 3 x 4, which is 40: the file is cut off"),
        (idx_bytes(VALUES) + b"x", "which is 40: the file is too long"),
        (idx_bytes(VALUES[:0]), r"holds nothing: its shape is \(0, 3, 4\)"),
        (bytes([0, 0, 8, 3]) + b"\xff" * 12, "its header says 4294967295 x 4294967295 x 4294967295"),
        (gzip.compress(idx_bytes(VALUES), mtime=0)[:-9], "is damaged"),
    ],
    # Named by length: several processes must agree on the names.
    ids=lambda value: None if isinstance(value, str) else f"{len(value)} bytes",
)
def test_refuses(tmp_path, content, message):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        parse_idx(read_content(path), path, 3)
    assert str(path) in str(caught.value)
