"""Files that are made to do harm: none is read, none runs code or opens another file."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from faults.outcome import Kind, Outcome, TryCase, read_or_refuse
from hostile_files import HDF5, ZARR, write_hdf5, write_zarr
from smoe.gridded.field_source import FieldSource
from smoe.gridded.open_fields import open_fields
from smoe.meshes import read_mesh

_CASES: list[tuple[str, str, Callable[[Path, str], str]]] = [
    *((name, "own.nc", write_hdf5) for name in HDF5),
    *((name, "own.zarr", write_zarr) for name in ZARR),
]


def _read_fields(path: Path) -> object:
    with open_fields(path) as data:
        return FieldSource(data).read(np.arange(8))


_READERS: tuple[Callable[[Path], object], ...] = (_read_fields, read_mesh)


def _prepare(folder: Path) -> TryCase:
    def try_case(number: int) -> Outcome:
        name, file, write = _CASES[number // len(_READERS)]
        read = _READERS[number % len(_READERS)]
        # A folder of its own, because xarray keeps files open.
        place = folder / str(number)
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        write(place / file, name)
        outcome = read_or_refuse(f"{file}: {name}", lambda: read(place / file), lambda _: False)
        if (place / "ran").exists():
            return Outcome("silent", f"{name}: code was run")
        return outcome

    return try_case


KINDS = (
    Kind("hostile-files", "NetCDF-4 and Zarr made to do harm", len(_CASES) * len(_READERS), _prepare, seconds=60.0),
)
