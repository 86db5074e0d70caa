"""How much memory a file may ask for: the header of a file from a stranger can claim any size. Imports no torch."""

from __future__ import annotations

from pathlib import Path

TIMES_THE_FILE = 10
ALLOWANCE = 1_000_000_000


def largest_claim(path: Path) -> int:
    """Returns the number of bytes that reading a file may take: ten times its size, and 1 GB."""
    return TIMES_THE_FILE * path.stat().st_size + ALLOWANCE


def excessive_claim(path: Path, claimed: int) -> str | None:
    """Returns the reason to refuse a file that would take `claimed` bytes of memory, or None if it is within bounds."""
    largest = largest_claim(path)
    if claimed <= largest:
        return None
    return (
        f"it claims {claimed / 1e9:,.1f} GB of memory, but has {path.stat().st_size:,} bytes, for which at most "
        f"{largest / 1e9:,.1f} GB are allowed ({TIMES_THE_FILE} times the file and {ALLOWANCE / 1e9:.0f} GB)"
    )
