"""Reads back what was simulated, field by field."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import xarray as xr

from simulation import layout


class SimulatedYears:
    """Reads single fields of whole years, `(T, 32, 64)`."""

    def __init__(self, root: Path):
        self._root = root
        names = (root / layout.RESOLUTION / "geopotential").glob(f"geopotential_*_{layout.RESOLUTION}.nc")
        found = sorted(int(path.name.split("_")[1]) for path in names)
        self.years = [year for year in found if layout.has_year(root, year)]
        if not self.years:
            raise ValueError(f"{root} holds no complete simulated year: run `make simulate` first")

    def read(self, name: str, years: list[int], level: int | None = None) -> np.ndarray:
        """One variable by short name, at one level in hPa where it has levels."""
        pieces = []
        for year in years:
            with xr.open_dataset(layout.year_file(self._root, name, year)) as data:
                values = data[name] if level is None else data[name].sel(level=level)
                pieces.append(values.values)
        return np.concatenate(pieces)

    def times(self, years: list[int]) -> np.ndarray:
        """The times of `read`."""
        return np.concatenate([layout.year_times(year) for year in years])

    def constant(self, name: str) -> np.ndarray:
        """A field without time, `(32, 64)`."""
        with xr.open_dataset(layout.constants_file(self._root)) as data:
            return data[name].values
