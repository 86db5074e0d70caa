"""Maps of regions: which type of region each pixel of a grid belongs to (paper, heat diffusion)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

# Of the 8 neighbours of a pixel a raster scan has visited 4: one to the left and three above.
_VISITED_NEIGHBOURS = ((0, -1), (-1, -1), (-1, 0), (-1, 1))
_TEXT_SUFFIXES = (".csv", ".txt")


def grow_region_map(shape: tuple[int, int], num_types: int, seed: int = 42) -> np.ndarray:
    """Grow a random map of regions by preferential attachment, in one raster scan.

    A pixel starts with probability 1/n for each of the n types. Each neighbour already assigned, of the eight around
    it, raises the probability of its own type by `(1 - 1/n) / 5` and lowers the others equally. At most four
    neighbours are assigned before a pixel, so no probability falls below 1/(5n) and they always sum to 1.

    Args:
        shape: Rows and columns of the map.
        num_types: Number of types of region, n.
        seed: Seed of the random generator; the paper's map is `grow_region_map((64, 64), 3, seed=42)`.

    Returns:
        Types in [0, n), int64, `(H, W)`. A small map may miss some of the types.
    """
    height, width = shape
    if height < 1 or width < 1:
        raise ValueError(f"shape must be at least (1, 1), got {tuple(shape)}")
    if num_types < 1:
        raise ValueError(f"num_types must be at least 1, got {num_types}")
    if num_types == 1:
        return np.zeros((height, width), dtype=np.int64)

    rng = np.random.default_rng(seed)
    gain = (1 - 1 / num_types) / 5
    loss = gain / (num_types - 1)
    region_map = np.zeros((height, width), dtype=np.int64)
    for row in range(height):
        for column in range(width):
            neighbours = sorted(
                int(region_map[row + down, column + right])
                for down, right in _VISITED_NEIGHBOURS
                if row + down >= 0 and 0 <= column + right < width
            )
            probabilities = np.full(num_types, 1 / num_types - loss * len(neighbours))
            for kind in neighbours:
                probabilities[kind] += gain + loss
            # choice() itself refuses probabilities that are negative or do not sum to 1.
            region_map[row, column] = rng.choice(num_types, p=probabilities)
    return region_map


def count_region_types(region_map: np.ndarray) -> int:
    """Check a map of regions and count its types.

    Args:
        region_map: Types of region, integers, `(H, W)`.

    Returns:
        The number of types n; all of 0, ..., n - 1 occur in the map.

    Raises:
        ValueError: If the map is not 2-D, not of integers, empty, or its types are not exactly 0, ..., n - 1.
    """
    if region_map.ndim != 2:
        raise ValueError(f"a region map must have 2 dimensions (H, W), got shape {region_map.shape}")
    if region_map.dtype.kind not in "iu":
        raise ValueError(f"a region map must hold integers, got {region_map.dtype}; convert it with astype(np.int64)")
    if region_map.size == 0:
        raise ValueError(f"a region map needs at least one pixel, got shape {region_map.shape}")
    types = np.unique(region_map)
    if types[0] < 0:
        raise ValueError(f"region types must be 0, 1, ..., got {types[0]}; number the regions from 0")
    gaps = np.flatnonzero(types != np.arange(len(types)))
    if gaps.size:
        raise ValueError(
            f"region types must be 0, 1, ... without a gap, but type {gaps[0]} is missing while {types[-1]} occurs; "
            "renumber the regions"
        )
    return len(types)


def load_region_map(path: str | Path) -> np.ndarray:
    """Read a map of regions from a file.

    Args:
        path: A `.npy` array of integers, or a `.csv` (commas) or `.txt` (spaces) table with a line per row.

    Returns:
        Types 0, ..., n - 1, each of them present, int64, `(H, W)`.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file does not hold a valid map.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"region map {path} is not a file; make one with grow_region_map and numpy.save")
    if path.suffix != ".npy" and path.suffix not in _TEXT_SUFFIXES:
        raise ValueError(f"region map {path} must end in .npy, .csv or .txt, got {path.suffix!r}")
    try:
        region_map = _read_npy(path) if path.suffix == ".npy" else _read_table(path)
        count_region_types(region_map)
    except ValueError as error:
        raise ValueError(f"region map {path}: {error}") from error
    return region_map.astype(np.int64)


def _read_npy(path: Path) -> np.ndarray:
    try:
        # A map is refused if the file is shorter than its header claims, and takes no memory for the claim.
        return np.array(np.lib.format.open_memmap(path, mode="r"))
    except Exception as error:  # a damaged header can make the parser of numpy fail in any way
        raise ValueError(
            f"cannot be read ({_one_line(error)}); write it again with numpy.save from an array of integers"
        ) from error


def _one_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _read_table(path: Path) -> np.ndarray:
    separator = "," if path.suffix == ".csv" else None
    rows: list[list[int]] = []
    # Not numpy.loadtxt: it turns 1.5 into 1 with no more than a warning.
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), start=1):
        if not line.strip():
            continue
        row = []
        for token in line.split(separator):
            try:
                row.append(int(token))
            except ValueError:
                raise ValueError(f"line {number} holds {token.strip()!r}; write only integers") from None
        if rows and len(row) != len(rows[0]):
            raise ValueError(f"line {number} has {len(row)} values, the lines above have {len(rows[0])}")
        rows.append(row)
    if not rows:
        raise ValueError("the file is empty; write one line of integers per row")
    try:
        return np.array(rows, dtype=np.int64)
    except OverflowError:
        raise ValueError("holds a number beyond 64 bits; number the regions from 0") from None
