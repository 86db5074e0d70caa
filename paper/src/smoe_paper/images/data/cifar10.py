"""Reads the binary version of CIFAR-10: records of a label and 3072 values (red, green, blue), without a header.

The version for Python is a pickle, which can execute code, and is not read.
"""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np

from smoe.errors import DataError
from smoe_paper.images.data.whole_files import read_content

NUM_CLASSES = 10
IMAGE_SHAPE = (3, 32, 32)
RECORD_BYTES = 1 + 3 * 32 * 32


def read_cifar10(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns images `(N, 3, 32, 32)` and labels `(N,)`, uint8, of one file such as `data_batch_1.bin`.

    Raises:
        DataError: If the length is not a multiple of a record, or a label is not in [0, 9].
    """
    return parse_cifar10(read_content(path), path)


def parse_cifar10(content: bytes, path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns images and labels of the content of a file; `path` appears in error messages."""
    num_records, rest = divmod(len(content), RECORD_BYTES)
    if rest or not num_records:
        raise DataError(
            f"{path} has {len(content):,} bytes, which are not whole records of {RECORD_BYTES} bytes (the published "
            f"files have 10,000 records, 30,730,000 bytes): is it cut off, or not the binary version of CIFAR-10?"
        )
    records = np.frombuffer(content, np.uint8).reshape(num_records, RECORD_BYTES)
    labels = records[:, 0]
    if labels.max() >= NUM_CLASSES:
        where = int((labels >= NUM_CLASSES).argmax())
        raise DataError(f"{path}: the label of record {where} is {labels[where]}, but labels are 0 to 9")
    return records[:, 1:].reshape(num_records, *IMAGE_SHAPE), labels


def read_archive(path: Path, names: tuple[str, ...]) -> list[bytes]:
    """Returns the contents of files of the archive, found by name in any of its folders.

    Raises:
        DataError: If the archive is damaged or a file is missing.
    """
    found: dict[str, bytes] = {}
    content = io.BytesIO(read_content(path))
    try:
        with tarfile.open(fileobj=content, mode="r:") as archive:
            for member in archive:
                name = Path(member.name).name
                file = archive.extractfile(member) if name in names and member.isreg() else None
                if file is not None:
                    found[name] = file.read()
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        raise DataError(f"{path} is damaged: {error}; get the archive again") from None
    missing = [name for name in names if name not in found]
    if missing:
        raise DataError(f"{path} does not hold {', '.join(missing)}: is it the binary version of CIFAR-10?")
    return [found[name] for name in names]
