"""One variable through time: its files, each read on demand."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from smoe.errors import DataError
from smoe.gridded._datasets import OpenFiles, damage_as_data_error
from smoe.gridded.grid import Grid
from smoe.gridded.year_ranges import describe_years
from smoe_paper.atmosphere.axes import Orientation, find_levels, find_orientation
from smoe_paper.atmosphere.time_axis import TimeAxis, read_time_axis
from smoe_paper.atmosphere.units import check_units
from smoe_paper.atmosphere.variables import Variable

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True)
class Piece:
    """A file with a part of a variable's times; `years` are those in its name."""

    path: Path
    years: range


@dataclass(frozen=True)
class Header:
    """Contents of a piece, known without reading a field."""

    name: str
    orientation: Orientation
    time: TimeAxis
    level_axis: str | None
    levels: tuple[int, ...]
    factor: float


class FieldSeries:
    """The fields of a variable in all its files.

    Args:
        variable: Variable of the series.
        pieces: Files in the order of time.
        names: Possible names of the variable inside the files; the first one found is used.
        files: Opens the files.
        grid: Required grid of all files; None accepts any of WeatherBench's. It may be set until a file is opened.
        notify: Receives corrections, with the file.
    """

    def __init__(
        self,
        variable: Variable,
        pieces: list[Piece],
        names: tuple[str, ...],
        files: OpenFiles,
        grid: Grid | None,
        notify: Callable[[str, Path], None],
    ):
        self.variable = variable
        self.pieces = pieces
        self._names = names
        self._files = files
        self.grid = grid
        self._notify = notify
        self._headers: dict[Path, Header] = {}
        self._unreadable: set[Path] = set()

    @property
    def years(self) -> tuple[int, ...]:
        """Years in the names of the files."""
        return tuple(sorted({year for piece in self.pieces for year in piece.years}))

    @property
    def levels(self) -> tuple[int, ...]:
        """Levels of the first file, in hPa; empty for a variable without levels."""
        return self.header(self.pieces[0]).levels

    def header(self, piece: Piece) -> Header:
        """Returns the contents of a file, which is opened and checked once."""
        if piece.path not in self._headers:
            self._headers[piece.path] = self._read_header(piece)
        return self._headers[piece.path]

    def can_be_opened(self, first_year: int, last_year: int) -> bool:
        """Checks the headers of the files that may hold times of these years."""
        for piece in self.pieces_of(first_year, last_year):
            try:
                if piece.path in self._unreadable:
                    return False
                self.header(piece)
            except DataError:
                self._unreadable.add(piece.path)
                return False
        return True

    def pieces_of(self, first_year: int, last_year: int) -> list[Piece]:
        """Returns the files that may hold times of these years."""
        return [p for p in self.pieces if p.years[0] <= last_year and p.years[-1] >= first_year]

    def times(self, year: int) -> np.ndarray:
        """Returns all times of a year in the files, datetime64[m]; may be empty."""
        first, last = np.datetime64(f"{year}-01-01", "m"), np.datetime64(f"{year + 1}-01-01", "m")
        # The first time of a year may be the last one of the file before.
        pieces = self.pieces_of(year - 1, year)
        parts = [header.time.values() for header in map(self.header, pieces) if header.time.last >= first]
        times = np.concatenate(parts) if parts else np.empty(0, "datetime64[m]")
        return times[(times >= first) & (times < last)]

    def read(self, level: int | None, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns fields at ascending times, float32 `(T, H, W)`, and a mask of the times in the files, `(T,)`.

        Fields of times that no file has are NaN.
        """
        years = times[[0, -1]].astype("datetime64[Y]").astype(int) + 1970
        pieces = self.pieces_of(int(years[0]) - 1, int(years[1]))
        found = np.zeros(len(times), dtype=bool)
        fields: np.ndarray | None = None
        for piece in pieces:
            header = self.header(piece)
            on_axis, index = header.time.find(times)
            if not on_axis.any():
                continue
            part = self._read_piece(piece, header, level, index)
            if on_axis.all():
                return part, on_axis
            if fields is None:
                fields = np.full((len(times), *part.shape[1:]), np.nan, dtype=np.float32)
            fields[on_axis] = part
            found |= on_axis
        if fields is None:
            raise DataError(
                f"{self.variable.folder} has no time between {times[0]} and {times[-1]}; its files cover the years "
                f"{describe_years(self.years)}"
            )
        return fields, found

    def level_index(self, piece: Piece, level: int | None) -> int | None:
        """Returns the index of a level in a file; None for a variable without levels."""
        levels = self.header(piece).levels
        if level is None:
            return None
        if level not in levels:
            raise DataError(f"{piece.path} has no level {level} hPa; it has {', '.join(map(str, levels))}")
        return levels.index(level)

    def _read_piece(self, piece: Piece, header: Header, level: int | None, index: np.ndarray) -> np.ndarray:
        orientation = header.orientation
        # A slice reads one block of the file; an index array would read step by step.
        stride = int(index[1] - index[0]) if len(index) > 1 else 1
        where: dict[Hashable, slice | int] = {header.time.name: slice(int(index[0]), int(index[-1]) + 1, stride)}
        level_index = self.level_index(piece, level)
        if header.level_axis is not None and level_index is not None:
            where[header.level_axis] = level_index
        dims = (header.time.name, orientation.latitude, orientation.longitude)
        with damage_as_data_error(piece.path, header.name):
            array = self._files.get(piece.path)[header.name].isel(where)
            array = array.isel({dim: 0 for dim in array.dims if dim not in dims}).transpose(*dims)
            fields = orientation.turn(array.values)
        return fields if header.factor == 1.0 else fields * np.float32(header.factor)

    def _read_header(self, piece: Piece) -> Header:
        dataset = self._files.get(piece.path)
        name = next((name for name in self._names if name in dataset.data_vars), None)
        if name is None:
            raise DataError(
                f"{piece.path} holds {', '.join(map(str, dataset.data_vars)) or 'no variable'}, expected "
                f"{' or '.join(self._names)} ({self.variable.folder})"
            )
        where = f"{piece.path}: {name}"
        array = dataset[name]
        with damage_as_data_error(piece.path, name):
            orientation = find_orientation(array, self.grid, where)
            time = self.place_in_time(read_time_axis(array, where), where)
            self._check_complete(piece, array, 24 * 60 // time.step if time.step else 1)
            level_axis, levels, in_pascal = None, (), False
            if self.variable.has_levels:
                level_axis, levels, in_pascal = find_levels(array, where)
        known = {orientation.latitude, orientation.longitude, time.name, level_axis}
        extra = [str(dim) for dim in array.dims if dim not in known and array.sizes[dim] > 1]
        if extra:
            raise DataError(
                f"{where} has the dimension {extra[0]!r} of length {array.sizes[extra[0]]}; choose one first"
            )
        self._check_promise(piece, time)
        for notice in orientation.notices():
            self._notify(notice, piece.path)
        usual = (time.name, level_axis, orientation.latitude, orientation.longitude)
        if tuple(dim for dim in array.dims if dim in known) != tuple(dim for dim in usual if dim is not None):
            self._notify(
                f"dimensions are in the order {', '.join(map(str, array.dims))}: read as time, level, lat, lon",
                piece.path,
            )
        if in_pascal:
            self._notify("levels are in Pa: read as hPa", piece.path)
        factor = self.unit_factor(array, orientation, piece, where)
        return Header(name, orientation, time, level_axis, levels, factor)

    def _check_promise(self, piece: Piece, time: TimeAxis) -> None:
        # One time of the next year is usual in the CMIP archive, whose files end with an hour 0.
        first = np.datetime64(f"{piece.years[0]}-01-01", "m")
        beyond = np.datetime64(f"{piece.years[-1] + 1}-01-01", "m") + np.timedelta64(1, "D")
        if time.start < first or time.last >= beyond:
            raise DataError(
                f"{piece.path} holds times from {time.start} to {time.last}, but its name says "
                f"{describe_years(tuple(piece.years))}"
            )

    def _check_complete(self, piece: Piece, array: xr.DataArray, steps_a_day: int) -> None:
        """Refuses an array with missing parts that opening the file does not reveal."""

    def place_in_time(self, axis: TimeAxis, where: str) -> TimeAxis:  # noqa: ARG002 - for other archives
        """Returns the times to which the fields belong; here those of the file."""
        return axis

    def unit_factor(self, array: xr.DataArray, orientation: Orientation, piece: Piece, where: str) -> float:  # noqa: ARG002
        """Returns the factor of the file's values; here they must be in the variable's units."""
        check_units(self.variable, array.attrs.get("units"), where)
        return 1.0
