"""Whether the files of a Zarr store are plain files, and whether its metadata ask for codecs that only decode numbers.

Zarr finds codecs by their names, among them one that unpickles, and so runs code of the store. It opens whatever has
the name of a chunk: a pipe is waited for, and a device may never end.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from smoe.errors import DataError
from smoe.file_claims import largest_claim
from smoe.integrity.inflation import MOST_TIMES, check_inflation

_METADATA = (".zarray", ".zattrs", ".zgroup", ".zmetadata", "zarr.json")
# Codecs of versions 2 and 3 that turn bytes into numbers or texts, and numbers into others.
_CODECS = frozenset(
    {
        *("blosc", "zlib", "gzip", "zstd", "lz4", "bz2", "lzma", "pcodec", "zfpy"),
        *("bytes", "endian", "transpose", "sharding_indexed", "cast_value", "scale_offset"),
        *("shuffle", "delta", "fixedscaleoffset", "quantize", "bitround", "packbits"),
        *("crc32", "crc32c", "adler32", "fletcher32", "jenkins_lookup3"),
        *("vlen-utf8", "vlen-bytes", "vlen-array"),
    }
)
_PREFIX = "numcodecs."


def check_zarr_files(store: Path) -> int:
    """Returns the number of bytes of a store.

    Raises:
        DataError: If a file is a pipe or a device, metadata are damaged, an array is named outside the store, or a
            codec is not known to decode numbers only, or a chunk decompresses to more than `smoe.file_claims` allows.
    """
    size = 0
    chunks: list[tuple[str, int]] = []
    for folder, _, files in os.walk(store):
        for name in files:
            path = os.path.join(folder, name)
            status = os.stat(path)
            if not stat.S_ISREG(status.st_mode):
                raise DataError(f"{path} is not a regular file, but a pipe or device; remove it")
            size += status.st_size
            if name in _METADATA:
                _check_metadata(Path(path))
            else:
                chunks.append((path, status.st_size))
    for path, length in chunks:
        if length * MOST_TIMES > largest_claim(size):
            check_inflation(Path(path), size)
    return size


def _check_metadata(path: Path) -> None:
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is damaged: {error}; copy the store again") from error
    for part in _array_metadata(path, content):
        for codec in _codecs(part):
            name = codec.get("id", codec.get("name")) if isinstance(codec, dict) else codec
            if not isinstance(name, str) or name.removeprefix(_PREFIX) not in _CODECS:
                raise DataError(
                    f"{path}: the codec {str(name)[:100]!r} is not used, because it is not known to decode numbers "
                    "only; write the store with another, such as zstd or blosc"
                )


def _array_metadata(path: Path, content: Any) -> Iterator[dict[str, Any]]:
    """The metadata of arrays in a file: its own, and those of arrays that it lists for a group."""
    if not isinstance(content, dict):
        raise DataError(f"{path} is damaged: it must hold a JSON object; copy the store again")
    yield content
    for listed in (content, content.get("consolidated_metadata")):
        named = listed.get("metadata") if isinstance(listed, dict) else None
        for name, part in named.items() if isinstance(named, dict) else ():
            if name.startswith("/") or ".." in name.split("/"):
                raise DataError(f"{path}: it names {name[:100]!r}, which is outside the store; write its metadata anew")
            if isinstance(part, dict):
                yield part


def _codecs(part: dict[str, Any]) -> Iterator[Any]:
    """Codecs of an array, and those of the chunks of its shards."""
    found: list[Any] = [part.get("compressor")]
    for key in ("filters", "codecs"):
        listed = part.get(key)
        found += listed if isinstance(listed, list) else []
    while found:
        codec = found.pop()
        if codec is None:
            continue
        yield codec
        options = codec.get("configuration") if isinstance(codec, dict) else None
        for key in ("codecs", "index_codecs"):
            inner = options.get(key) if isinstance(options, dict) else None
            found += inner if isinstance(inner, list) else []
