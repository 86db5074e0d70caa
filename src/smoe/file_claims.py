"""How much memory a file may ask for: the header of a file from a stranger can claim any size. Imports no torch."""

from __future__ import annotations

from pathlib import Path

TIMES_THE_FILE = 10
ALLOWANCE = 1_000_000_000


def largest_claim(source: Path | int) -> int:
    """Returns the number of bytes that reading a file may take: ten times its size, and 1 GB.

    Args:
        source: The file, or the number of bytes that it, or a store of many files, has.
    """
    return TIMES_THE_FILE * _num_bytes(source) + ALLOWANCE


def excessive_claim(source: Path | int, claimed: int) -> str | None:
    """Returns the reason to refuse a file that would take `claimed` bytes of memory, or None if it is within bounds.

    Args:
        source: The file, or the number of bytes that it, or a store of many files, has.
        claimed: Bytes that reading it would take.
    """
    largest = largest_claim(source)
    if claimed <= largest:
        return None
    return (
        f"it claims {claimed / 1e9:,.1f} GB of memory, but has {_num_bytes(source):,} bytes, for which at most "
        f"{largest / 1e9:,.1f} GB are allowed ({TIMES_THE_FILE} times the file and {ALLOWANCE / 1e9:.0f} GB)"
    )


def _num_bytes(source: Path | int) -> int:
    return source if isinstance(source, int) else source.stat().st_size
