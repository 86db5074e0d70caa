"""Reads WeatherBench as downloaded: `<resolution>/<variable>/<variable>_<year>_<resolution>.nc`."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np

from smoe.errors import DataError
from smoe.gridded._datasets import OpenFiles, open_netcdf
from smoe_paper.atmosphere.grids import GRIDS
from smoe_paper.atmosphere.variables import CONSTANTS, HOURLY_PRECIPITATION, VARIABLES, Variable, check_constant_name
from smoe_paper.weather.data.constants import check_constant, grid_constant
from smoe_paper.weather.data.series import FieldSeries, Piece
from smoe_paper.weather.data.series_source import SeriesSource

YEAR_FILE = re.compile(r"(?P<stem>.+?)(?:hPa)?_(?P<year>[0-9]{4})_[0-9.]+deg\.nc")


class WeatherBenchSource(SeriesSource):
    """Reads one resolution's folder of WeatherBench.

    Args:
        folder: Folder that holds a folder for each variable.
        resolution: Name of its grid, one of `GRIDS`; None if the folder's name does not contain it.
    """

    kind = "weatherbench"

    def __init__(self, folder: Path, resolution: str | None):
        super().__init__(folder, OpenFiles(open_netcdf))
        self._expected_grid = None if resolution is None else GRIDS[resolution]
        series: dict[str, list[FieldSeries]] = {}
        hourly_precipitation = None
        for directory in sorted(each for each in folder.iterdir() if each.is_dir()):
            variable = self._variable_of(directory)
            pieces = [] if variable is None else self._find_pieces(directory)
            if variable is None:
                continue
            if not pieces:
                self._notice_zip_files(directory)
            elif variable is HOURLY_PRECIPITATION:
                hourly_precipitation = self._make_series(variable, pieces)
            else:
                series.setdefault(variable.short_name, []).append(self._make_series(variable, pieces))
        self._set_series(series, hourly_precipitation)

    def _variable_of(self, directory: Path) -> Variable | None:
        by_folder = {variable.folder: variable for variable in (*VARIABLES.values(), HOURLY_PRECIPITATION)}
        # geopotential_500 and temperature_850 are copies of one level.
        single_level = re.fullmatch(r"(.+)_[0-9]+", directory.name)
        if directory.name not in by_folder and single_level:
            variable = by_folder.get(single_level[1])
            return variable if variable is not None and variable.has_levels else None
        return by_folder.get(directory.name)

    def _make_series(self, variable: Variable, pieces: list[Piece]) -> FieldSeries:
        return FieldSeries(variable, pieces, (variable.short_name,), self._files, self._expected_grid, self._notify)

    def _find_pieces(self, directory: Path) -> list[Piece]:
        pieces = []
        for path in directory.iterdir():
            match = YEAR_FILE.fullmatch(path.name)
            if match and match["stem"] == directory.name:
                pieces.append(Piece(path, range(int(match["year"]), int(match["year"]) + 1)))
        pieces.sort(key=lambda piece: piece.years[0])
        for piece, following in itertools.pairwise(pieces):
            if piece.years == following.years:
                raise DataError(
                    f"{directory} has two files of {piece.years[0]}: {piece.path.name}, {following.path.name}"
                )
        return pieces

    def _notice_zip_files(self, directory: Path) -> None:
        archives = sorted(directory.glob("*.zip"))
        if archives:
            self._notify(f"{directory.name} is not unpacked: left out; unzip it there", archives[0])

    @property
    def constant_names(self) -> tuple[str, ...]:
        """Returns the constants of the file, and those that follow from the grid."""
        path = self._constants_file()
        inside = self._files.get(path).data_vars if path else ()
        return tuple(name for name in CONSTANTS if name in inside or grid_constant(name, self.grid) is not None)

    def read_constant(self, name: str) -> np.ndarray:
        """Returns a constant of the constants file; `lat2d` and `lon2d` are computed."""
        check_constant_name(name)
        computed = grid_constant(name, self.grid)
        if computed is not None:
            return computed
        path = self._constants_file()
        if path is None:
            raise DataError(
                f"{self.path} has no constants/constants_{self.grid.name}.nc, needed for {name}; download `constants`"
            )
        if name not in self._files.get(path).data_vars:
            found = ", ".join(map(str, self._files.get(path).data_vars))
            raise DataError(f"{path} has no {name}; it has {found}")
        where = f"{path}: {name}"
        return check_constant(self._read_constant_file(path, name, where), name, where)

    def _constants_file(self) -> Path | None:
        return self._constants_in(self.path)

    def _constants_in(self, resolution_folder: Path) -> Path | None:
        folder = resolution_folder / "constants"
        found = sorted(folder.glob("constants*.nc")) if folder.is_dir() else []
        if len(found) > 1:
            raise DataError(f"{folder} has {len(found)} files of constants, expected one")
        return found[0] if found else None
