"""All kinds of faults."""

from __future__ import annotations

from collections.abc import Sequence

from faults import checkpoints, disks, formats, hostile, kernels, nonfinite, records, stops, threads
from faults.outcome import Kind

KINDS: tuple[Kind, ...] = (
    *(*stops.KINDS, *nonfinite.KINDS, *disks.KINDS, *checkpoints.KINDS, *records.KINDS, *formats.KINDS),
    *hostile.KINDS,
    *(*kernels.KINDS, *threads.KINDS),
)


def find_kinds(names: Sequence[str]) -> list[Kind]:
    """The kinds of these names; all if there are none.

    Raises:
        SystemExit: If a name is unknown.
    """
    by_name = {kind.name: kind for kind in KINDS}
    for name in names:
        if name not in by_name:
            raise SystemExit(f"no kind of fault is named {name!r}; there are {', '.join(by_name)}")
    return [by_name[name] for name in names] if names else list(KINDS)
