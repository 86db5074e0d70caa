"""Makes src/smoe/coastlines.npz, the outline of the land that maps are drawn with.

The outline is Natural Earth's land at 1:110 million (naturalearthdata.com), which is in the public domain. It is taken
from the TopoJSON that the npm package `world-atlas` holds of it:

    npm pack world-atlas@2.0.2 && tar xzf world-atlas-2.0.2.tgz
    python tools/make_coastlines.py package/land-110m.json src/smoe/coastlines.npz

The result holds `points`, longitude and latitude in hundredths of a degree, `(n, 2)` int16, and `ends`, the number of
the point after the last one of each line, int32.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np


def read_rings(topology: dict[str, Any]) -> list[np.ndarray]:
    """The closed rings of all polygons, longitude and latitude in degrees, `(n, 2)` each."""
    scale, origin = np.array(topology["transform"]["scale"]), np.array(topology["transform"]["translate"])
    # An arc is a first point and steps; a negative number in a ring means that the arc ~number is run backwards.
    arcs = [np.cumsum(np.array(arc), axis=0) * scale + origin for arc in topology["arcs"]]
    rings = []
    for geometry in topology["objects"]["land"]["geometries"]:
        polygons = geometry["arcs"] if geometry["type"] == "MultiPolygon" else [geometry["arcs"]]
        for polygon in polygons:
            for ring in polygon:
                parts = [arcs[number] if number >= 0 else arcs[~number][::-1] for number in ring]
                rings.append(np.concatenate([parts[0], *(part[1:] for part in parts[1:])]))
    return rings


def without_map_borders(ring: np.ndarray) -> list[np.ndarray]:
    """The parts of a ring that are coast and do not cross the map: it is cut where it passes 180 degrees."""
    start, end = ring[:-1], ring[1:]
    on_meridian = (np.abs(start[:, 0]) > 179.99) & (np.abs(end[:, 0]) > 179.99)
    is_coast = ~on_meridian & (np.abs(start[:, 0] - end[:, 0]) < 180)
    lines: list[np.ndarray] = []
    first: int | None = None
    for number, keep in enumerate([*is_coast, False]):
        if keep and first is None:
            first = number
        elif not keep and first is not None:
            lines.append(ring[first : number + 1])
            first = None
    return lines


def main() -> None:
    """Converts the file named first into the one named second."""
    source, target = (Path(argument) for argument in sys.argv[1:])
    lines = [line for ring in read_rings(json.loads(source.read_text())) for line in without_map_borders(ring)]
    points = np.round(np.concatenate(lines) * 100).astype(np.int16)
    np.savez_compressed(target, points=points, ends=np.cumsum([len(line) for line in lines], dtype=np.int32))


if __name__ == "__main__":
    main()
