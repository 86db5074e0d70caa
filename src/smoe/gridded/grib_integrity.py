"""Whether a GRIB file ends where its last message ends. The library skips what follows the last whole message."""

from __future__ import annotations

from pathlib import Path

from smoe.errors import DataError

_START, _END = b"GRIB", b"7777"
_HEADER = 16


def check_grib_file(path: Path) -> None:
    """Refuses a file that is cut off inside a message.

    A file that is cut off between two messages is a shorter file, and is not noticed.

    Raises:
        DataError: with the place.
    """
    size, place = path.stat().st_size, 0
    with path.open("rb") as file:
        while place < size:
            file.seek(place)
            header = file.read(_HEADER)
            if not header.startswith(_START):
                # Between messages there may be headers of telecommunication, which are longer; padding is zeros.
                if size - place < _HEADER and any(header):
                    raise _truncated(path, size, place)
                return
            length = _length(header)
            if length is None:
                return
            file.seek(max(0, place + length - len(_END)))
            if place + length > size or file.read(len(_END)) != _END:
                raise _truncated(path, size, place)
            place += length


def _length(header: bytes) -> int | None:
    """Bytes of the message that begins with this header; None if the header does not say it."""
    edition = header[7] if len(header) > 7 else 0
    if edition == 2 and len(header) == _HEADER:
        return int.from_bytes(header[8:16], "big")
    length = int.from_bytes(header[4:7], "big")
    # Messages of edition 1 of more than 8 MB have another count of bytes, which depends on their sections.
    return length if edition == 1 and length < 0x800000 else None


def _truncated(path: Path, size: int, place: int) -> DataError:
    return DataError(
        f"{path} is truncated or damaged: the message at byte {place} does not end within its {size} bytes; copy or "
        "download it again"
    )
