"""A chunked Zarr store of noise, which the benchmarks of own data read."""

from __future__ import annotations

from pathlib import Path

import numpy as np

VARIABLES, ROWS, COLUMNS, CHUNK = 4, 180, 360, 10


def row_bytes() -> int:
    """Bytes of all variables at one time."""
    return 4 * VARIABLES * ROWS * COLUMNS


def write_store(path: Path, num_times: int) -> None:
    """Writes noise, chunk by chunk."""
    import zarr

    group = zarr.open_group(path, mode="w")
    axes = {
        "time": (np.arange(num_times), {"units": "days since 2000-01-01", "calendar": "standard"}),
        "lat": (np.linspace(-89.5, 89.5, ROWS), {"units": "degrees_north"}),
        "lon": (np.arange(0.5, 360.0), {"units": "degrees_east"}),
    }
    for name, (values, attributes) in axes.items():
        array = group.create_array(name, shape=values.shape, dtype=values.dtype, dimension_names=[name])
        array[:] = values
        array.attrs.update(attributes)
    generator = np.random.default_rng(0)
    for number in range(VARIABLES):
        shape, chunks = (num_times, ROWS, COLUMNS), (CHUNK, ROWS, COLUMNS)
        dims = ["time", "lat", "lon"]
        array = group.create_array(f"v{number}", shape=shape, chunks=chunks, dtype="float32", dimension_names=dims)
        for first in range(0, num_times, CHUNK):
            array[first : first + CHUNK] = generator.standard_normal(chunks, dtype=np.float32)
