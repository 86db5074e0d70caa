"""Predictions of many blocks as one data set whose fields lie on the disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from smoe.errors import DataError
from smoe.gridded._datasets import import_xarray

if TYPE_CHECKING:
    import xarray as xr

# Bytes of the fields that are taken from the disk at once.
_PIECE_BYTES = 1 << 23


def join_blocks(blocks: Iterator[xr.Dataset], folder: Path) -> xr.Dataset:
    """Joins data sets that follow each other in time.

    A single block is returned as it is. The fields of several are kept in files, of which the memory holds a few
    megabytes while the data set is written.

    Args:
        blocks: Data sets of one layout.
        folder: Folder for the files; it must last as long as the data set.

    Raises:
        DataError: If the disk is full.
    """
    first = next(blocks)
    second = next(blocks, None)
    if second is None:
        return first
    # The dimension of the times, or of the starts of forecasts.
    dim = next(str(each.dims[0]) for each in first.coords.values() if each.ndim == 1 and each.dtype.kind in "MO")
    names = [str(name) for name, array in first.data_vars.items() if dim in array.dims]
    coordinates = []
    # Written, not mapped: mapped pages that wait for the disk would count as memory of the process.
    files = {name: (folder / f"{number}.f32").open("wb") for number, name in enumerate(names)}
    try:
        for block in _chained(first, second, blocks):
            for name, file in files.items():
                file.write(np.ascontiguousarray(block[name].values, np.float32).data)
            coordinates.append(block.drop_vars(names))
    except OSError as error:
        raise DataError(f"{folder} cannot be written: {error.strerror or error}") from error
    finally:
        for file in files.values():
            file.close()
    whole = import_xarray().concat(
        coordinates, dim=dim, data_vars="minimal", coords="minimal", compat="override", join="exact"
    )
    fields = {
        name: (first[name].dims, _on_disk(Path(file.name), (whole.sizes[dim], *first[name].shape[1:])),
               first[name].attrs)
        for name, file in files.items()
    }  # fmt: skip
    # In the order of the targets; a choice of variables would lose coordinates on other dimensions, such as the points
    # of a mesh whose fields lie on its faces.
    return whole.assign(fields)[list(first.data_vars)].assign_coords(whole.coords)


def _on_disk(path: Path, shape: tuple[int, ...]) -> Any:
    import dask.array

    values = np.memmap(path, np.float32, "r", shape=shape)
    rows = max(1, _PIECE_BYTES // (4 * int(np.prod(shape[1:]))))
    chunks: Any = (rows, *shape[1:])
    return dask.array.from_array(values, chunks=chunks, name=False, lock=True)


def _chained(first: xr.Dataset, second: xr.Dataset, others: Iterator[xr.Dataset]) -> Iterator[xr.Dataset]:
    yield first
    yield second
    yield from others
