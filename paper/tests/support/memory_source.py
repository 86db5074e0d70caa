"""A weather archive whose fields are made up in memory, one random field for each channel and time."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import xarray as xr

from smoe.training.progress import ProgressBar
from smoe_paper.atmosphere.fields import Grid
from smoe_paper.weather.archive import Archive

CONSTANTS = ("lsm", "orography", "lat2d")
GRID = Grid((-60.0, -20.0, 20.0, 60.0), (0.0, 72.0, 144.0, 216.0, 288.0))
SCALES = {
    "z": (5e4, 1e3), "t": (280.0, 10.0), "t2m": (285.0, 12.0), "tisr": (2e6, 2e5), "u": (5.0, 8.0), "q": (0.01, 1e-3)
}  # fmt: skip


@dataclass
class MemorySource(Archive):
    """Fields of `days` days from the first of January of each year.

    `changes` holds values that replace those of a channel and year, from the first step on; they may be NaN.
    """

    all_years: tuple[int, ...] = (2000, 2001, 2002)
    names: tuple[str, ...] = ("z_500", "t_850", "t2m", "tisr", "tp")
    step_hours: int = 6
    days: int = 10
    grid: Grid = GRID  # pyright: ignore[reportIncompatibleVariableOverride]
    changes: dict[tuple[str, int], np.ndarray] = field(default_factory=dict)
    path: Path = Path("memory")

    @property
    def years(self) -> list[int]:
        return list(self.all_years)

    @property
    def constants(self) -> list[str]:
        return list(CONSTANTS)

    def times(self, year: int) -> np.ndarray:
        first = np.datetime64(f"{year}-01-01", "h")
        is_last = year + 1 not in self.all_years
        # Whole years, so that one follows the other, but for the last of a row.
        last = first + 24 * self.days if is_last else np.datetime64(f"{year + 1}-01-01", "h")
        return np.arange(first, last, np.timedelta64(self.step_hours, "h"))

    def open(self, year: int, channels: tuple[str, ...]) -> xr.Dataset:
        fields = {name: (("time", "lat", "lon"), self.read_year(name, year)) for name in channels}
        axes = {"lat": list(self.grid.latitude), "lon": list(self.grid.longitude)}
        return xr.Dataset(fields, {"time": self.times(year).astype("datetime64[ns]"), **axes}, {"path": "memory"})

    def read_year(self, channel: str, year: int) -> np.ndarray:
        rng = np.random.default_rng((zlib.crc32(channel.encode()), year))
        noise = rng.standard_normal((len(self.times(year)), *self.grid.shape))
        mean, std = SCALES.get(channel.partition("_")[0], (0.0, 1.0))
        values = np.maximum(noise, 0.0) * 2e-3 if channel == "tp" else mean + std * noise
        values = values.astype(np.float32)
        change = self.changes.get((channel, year))
        if change is not None:
            values[: len(change)] = change
        return values

    def read_constant(self, name: str) -> np.ndarray:
        if name == "lat2d":
            return super().read_constant(name)
        values = np.random.default_rng(zlib.crc32(name.encode())).random(self.grid.shape)
        return (values > 0.5 if name == "lsm" else 1e3 * values).astype(np.float32)


class Silent(ProgressBar):
    """Keeps the messages of a preparation."""

    def __init__(self) -> None:
        super().__init__(is_quiet=True)
        self.lines: list[str] = []
        self.steps: list[str] = []

    def notify(self, text: str) -> None:
        self.lines.append(text)

    def begin(self, total: int, done: int, text: str = "") -> None:
        """Nothing is shown."""

    def advance(self, text: str | None = None) -> None:
        self.steps.append(text or "")


def contents(path: Path) -> dict[str, bytes]:
    """All files of a store but hidden ones, to compare two stores byte by byte."""
    files = (file for file in path.rglob("*") if file.is_file() and file.name[0] != ".")
    return {str(file.relative_to(path)): file.read_bytes() for file in files}
