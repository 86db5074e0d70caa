"""Whether compressed bytes decompress to more than a file may take: a few megabytes can become many gigabytes."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from smoe.errors import DataError
from smoe.file_claims import excessive_claim, largest_claim

MOST_TIMES_DEFLATE = 1032
"""Largest ratio of what deflate makes of its bytes."""

MOST_TIMES = 1_100_000
"""Largest ratio of all kinds of compression, that of bzip2."""

_GZIP, _BZIP2, _XZ, _ZSTANDARD = b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd"
_SIGNATURE_LENGTH = 18
_PIECE = 1 << 20
# Bits of the window: those of the header of gzip or zlib.
_ANY_HEADER = 47


def check_inflation(path: Path, size: int, offset: int = 0, length: int | None = None) -> None:
    """Refuses a chunk that decompresses to more than `smoe.file_claims` allows. No more than a piece is in memory.

    The kind of compression is known by the first bytes. A chunk that is too short for its kind to become so large is
    not decompressed. Of Zstandard, the length that its header states is compared; where none is stated, it is not
    noticed.

    Args:
        path: File that holds the chunk.
        size: Bytes of the file or of the whole store.
        offset: Where the chunk begins.
        length: Bytes of the chunk; None for all that follow.

    Raises:
        DataError: With the file.
    """
    length = path.stat().st_size - offset if length is None else length
    with path.open("rb") as file:
        file.seek(offset)
        first = file.read(min(length, _SIGNATURE_LENGTH))
        counter = _counter(first, length, largest_claim(size))
        file.seek(offset)
        while counter is not None and length > 0 and counter.num_bytes <= counter.most:
            piece = file.read(min(length, _PIECE))
            if not piece:
                break
            counter.add(piece)
            length -= len(piece)
    inflated = _zstandard_length(first) if counter is None else counter.num_bytes
    if reason := excessive_claim(size, inflated):
        raise DataError(f"{path} is refused: its content is larger than it may be: {reason}")


def check_inflated_bytes(place: str, content: bytes, size: int) -> None:
    """Refuses a chunk that was read and that deflate makes larger than `smoe.file_claims` allows.

    Args:
        place: File and variable, for the message.
        content: Bytes of the chunk, compressed by deflate; others are passed over.
        size: Bytes of the file.

    Raises:
        DataError: With the place.
    """
    counter = _Counter(zlib.decompressobj, largest_claim(size))
    counter.add(content)
    if reason := excessive_claim(size, counter.num_bytes):
        raise DataError(f"{place} is refused: its content is larger than it may be: {reason}")


class _Counter:
    """Counts the bytes that compressed content becomes, and keeps none of them.

    Args:
        make: Makes what decompresses a stream; one may follow another.
        most: Number after which counting ends.
    """

    def __init__(self, make: Callable[[], Any], most: int) -> None:
        self._make, self._stream = make, make()
        self.most, self.num_bytes = most, 0

    def add(self, content: bytes) -> None:
        """Adds more content. What is damaged counts nothing: it is left to the library that reads the values."""
        while self.num_bytes <= self.most:
            try:
                inflated = self._stream.decompress(content, _PIECE)
            except (zlib.error, OSError, EOFError, lzma.LZMAError):
                return
            self.num_bytes += len(inflated)
            if self._stream.eof:
                content, self._stream = self._stream.unused_data, self._make()
            else:
                # Those of zlib return what they have not looked at; the others keep it.
                content = getattr(self._stream, "unconsumed_tail", b"")
            if not content and len(inflated) < _PIECE:
                return


def _counter(first: bytes, length: int, most: int) -> _Counter | None:
    """Counts what a chunk becomes that begins with these bytes; None if it cannot become so large."""
    if first.startswith(_BZIP2):
        return _Counter(bz2.BZ2Decompressor, most)
    if first.startswith(_XZ):
        return _Counter(lzma.LZMADecompressor, most)
    # The first two bytes of zlib are a multiple of 31, of which the lower half of the first is 8.
    is_zlib = len(first) > 1 and first[0] & 15 == 8 and (256 * first[0] + first[1]) % 31 == 0
    if (first.startswith(_GZIP) or is_zlib) and length * MOST_TIMES_DEFLATE > most:
        return _Counter(partial(zlib.decompressobj, _ANY_HEADER), most)
    return None


def _zstandard_length(first: bytes) -> int:
    """The length of the content that the header of a Zstandard frame states; 0 if it is none, or states none."""
    if not first.startswith(_ZSTANDARD) or len(first) < 6:
        return 0
    descriptor = first[4]
    is_single = bool(descriptor & 32)
    start = 5 + (not is_single) + (0, 1, 2, 4)[descriptor & 3]
    num_bytes = (int(is_single), 2, 4, 8)[descriptor >> 6]
    return int.from_bytes(first[start : start + num_bytes], "little") + (256 if num_bytes == 2 else 0)
