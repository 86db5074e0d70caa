"""What a run keeps on disk between its calls: the stretches of time that no finished year holds yet."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np

from simulation import layout


class ChunkFolder:
    """Stretches of 6-hourly fields in WeatherBench's variables, one file each; a file has its name when it is whole."""

    def __init__(self, folder: Path):
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, times: np.ndarray, values: dict[str, np.ndarray]) -> None:
        """Keeps one stretch; a stretch with the same first time is replaced."""
        if not len(times):
            return
        path = self._folder / f"{np.datetime64(times[0], 'h')}.npz"
        temporary = path.with_suffix(".part")
        with temporary.open("wb") as file:
            np.savez(file, times=times.astype("datetime64[h]"), **values)  # pyright: ignore[reportArgumentType]
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)

    def finish_years(self, root: Path, years: range, attributes: dict[str, str]) -> list[int]:
        """Writes each year that is complete in the stretches and not yet in `root`, then drops what years hold.

        Returns:
            Years written by this call.
        """
        written = []
        for year in years:
            if not layout.has_year(root, year):
                values = self._collect(year)
                if values is None:
                    break
                layout.write_year(root, year, values, attributes)
                written.append(year)
        for path, times in self._times().items():
            if all(layout.has_year(root, int(year)) for year in np.unique(_year_of(times))):
                path.unlink()
        return written

    def _collect(self, year: int) -> dict[str, np.ndarray] | None:
        """The fields at every time of the year, or None while times are missing."""
        wanted = layout.year_times(year)
        rows = {path: np.isin(times, wanted) for path, times in self._times().items()}
        # Stretches follow each other without overlap, so that counting is enough.
        if sum(int(inside.sum()) for inside in rows.values()) < len(wanted):
            return None
        collected: dict[str, list[np.ndarray]] = {name: [] for name in layout.VARIABLES}
        for path, inside in rows.items():
            if inside.any():
                with path.open("rb") as file, np.load(file) as stretch:
                    for name, pieces in collected.items():
                        pieces.append(stretch[name][inside])
        return {name: np.concatenate(pieces) for name, pieces in collected.items()}

    def _times(self) -> dict[Path, np.ndarray]:
        """The times of every stretch, in order of time."""
        result = {}
        for path in sorted(self._folder.glob("*.npz")):
            try:
                with path.open("rb") as file, np.load(file) as stretch:
                    result[path] = stretch["times"]
            except (zipfile.BadZipFile, ValueError, KeyError, OSError) as error:
                raise ValueError(
                    f"{path} is damaged ({error}): delete the folder {path.parent.parent} and run again"
                ) from None
        return result


def _year_of(times: np.ndarray) -> np.ndarray:
    return times.astype("datetime64[Y]").astype(int) + 1970
