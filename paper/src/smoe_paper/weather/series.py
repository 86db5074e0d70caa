"""Time series of a variable in the files of an archive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from smoe.errors import DataError
from smoe.gridded import damage_as_data_error
from smoe_paper.atmosphere.axes import Grid, TimeAxis, read_time_axis
from smoe_paper.atmosphere.files import FileVariable, OpenFiles, find_variable
from smoe_paper.atmosphere.store import describe_years
from smoe_paper.atmosphere.variables import (
    STANDARD_GRAVITY,
    Variable,
    canonical_units,
    check_units,
    standard_height,
)

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

    variable: FileVariable
    time: TimeAxis
    factor: float


class FieldSeries:
    """The fields of a variable in all its files."""

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
        return tuple(sorted({year for piece in self.pieces for year in piece.years}))

    @property
    def levels(self) -> tuple[int, ...]:
        return self.header(self.pieces[0]).variable.levels

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
        return [p for p in self.pieces if p.years[0] <= last_year and p.years[-1] >= first_year]

    def times(self, year: int) -> np.ndarray:
        """Returns all times of a year in the files, datetime64[m]; may be empty."""
        first, last = np.datetime64(f"{year}-01-01", "m"), np.datetime64(f"{year + 1}-01-01", "m")
        # The first time of a year may be the last one of the file before.
        pieces = self.pieces_of(year - 1, year)
        parts = [header.time.values() for header in map(self.header, pieces) if header.time.last >= first]
        times = np.concatenate(parts) if parts else np.empty(0, "datetime64[m]")
        return times[(times >= first) & (times < last)]

    def check_level(self, year: int, level: int | None) -> None:
        """Refuses files of a year that lack a level."""
        for piece in self.pieces_of(year, year):
            if level is not None:
                self.header(piece).variable.level_index(level)

    def read(self, level: int | None, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns fields at ascending times, float32 `(T, H, W)`, and a mask of the times in the files, `(T,)`.

        Fields of times that no file has are NaN.
        """
        years = times[[0, -1]].astype("datetime64[Y]").astype(int) + 1970
        found = np.zeros(len(times), dtype=bool)
        fields: np.ndarray | None = None
        for piece in self.pieces_of(int(years[0]) - 1, int(years[1])):
            header = self.header(piece)
            on_axis, index = header.time.find(times)
            if not on_axis.any():
                continue
            # A slice reads one block of the file; an index array would read step by step.
            stride = int(index[1] - index[0]) if len(index) > 1 else 1
            where = {header.time.name: slice(int(index[0]), int(index[-1]) + 1, stride)}
            part = header.variable.read(self._files.get(piece.path), header.time.name, where, level)
            if header.factor != 1.0:
                part *= np.float32(header.factor)
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

    def _read_header(self, piece: Piece) -> Header:
        dataset = self._files.get(piece.path)
        name = next((name for name in self._names if name in dataset.data_vars), None)
        if name is None:
            raise DataError(
                f"{piece.path} holds {', '.join(map(str, dataset.data_vars)) or 'no variable'}, expected "
                f"{' or '.join(self._names)} ({self.variable.folder})"
            )
        where, array = f"{piece.path}: {name}", dataset[name]
        found = find_variable(dataset, piece.path, name, self.grid, has_levels=self.variable.has_levels)
        with damage_as_data_error(piece.path, name):
            time = self._place_in_time(read_time_axis(array, where), where)
            self._check_complete(piece, array, 24 * 60 // time.step if time.step else 1)
        usual = (time.name, found.level_axis, found.orientation.latitude, found.orientation.longitude)
        extra = [str(dim) for dim in array.dims if dim not in usual and array.sizes[dim] > 1]
        if extra:
            raise DataError(
                f"{where} has the dimension {extra[0]!r} of length {array.sizes[extra[0]]}; choose one first"
            )
        self._check_promise(piece, time)
        for notice in found.orientation.notices():
            self._notify(notice, piece.path)
        if tuple(dim for dim in array.dims if dim in usual) != tuple(dim for dim in usual if dim is not None):
            self._notify(
                f"dimensions are in the order {', '.join(map(str, array.dims))}: read as time, level, lat, lon",
                piece.path,
            )
        if found.has_pascals:
            self._notify("levels are in Pa: read as hPa", piece.path)
        return Header(found, time, self._unit_factor(array, found, time, where))

    def _check_promise(self, piece: Piece, time: TimeAxis) -> None:
        # One time of the next year is usual in the CMIP archive, whose files end with an hour 0.
        first = np.datetime64(f"{piece.years[0]}-01-01", "m")
        beyond = np.datetime64(f"{piece.years[-1] + 1}-01-01", "m") + np.timedelta64(1, "D")
        if time.start < first or time.last >= beyond:
            raise DataError(
                f"{piece.path} holds times from {time.start} to {time.last}, but its name says "
                f"{describe_years(piece.years)}"
            )

    def _check_complete(self, piece: Piece, array: xr.DataArray, steps_a_day: int) -> None:
        """Refuses an array with missing parts that opening the file does not reveal."""

    def _place_in_time(self, axis: TimeAxis, where: str) -> TimeAxis:  # noqa: ARG002 - for other archives
        """Returns the times to which the fields belong; here those of the file."""
        return axis

    def _unit_factor(self, array: xr.DataArray, found: FileVariable, time: TimeAxis, where: str) -> float:  # noqa: ARG002
        """Returns the factor of the file's values; here they must be in the variable's units."""
        check_units(self.variable, array.attrs.get("units"), where)
        return 1.0


# Global means in the library's units, which show whether values were converted. The factors are at least 10.
_TYPICAL_MEANS = {"tisr": 1.22e6, "tp": 6.8e-4}


class CmipSeries(FieldSeries):
    """Fields of the CMIP archive, in its own units or converted."""

    def _place_in_time(self, axis: TimeAxis, where: str) -> TimeAxis:
        # Means over some hours carry the time of their middle; they belong to their end.
        if self.variable.cmip_name not in ("pr", "rsdt"):
            return axis
        if self.variable.cmip_name == "pr" and axis.step not in (0, 360):
            raise DataError(f"{where} has steps of {axis.step} minutes, expected 6-hour means")
        minutes = int((axis.start - np.datetime64("1800-01-01", "m")).astype(np.int64))
        return axis.shifted(-minutes % 180 if self.variable.cmip_name == "rsdt" else -minutes % 360)

    def _unit_factor(self, array: xr.DataArray, found: FileVariable, time: TimeAxis, where: str) -> float:
        # Regridding programs rename and convert a variable but keep its attributes. So under WeatherBench's name the
        # archive's units, or none, are no evidence, and the size of the values decides.
        variable = self.variable
        units = canonical_units(str(array.attrs.get("units", "")))
        if variable.cmip_factor == 1.0 or not variable.cmip_name:
            check_units(variable, units, where)
            return 1.0
        is_archive_units = units in ("", canonical_units(variable.cmip_units))
        if array.name == variable.cmip_name and is_archive_units:
            return variable.cmip_factor
        if not is_archive_units:
            check_units(variable, units, where)
            return 1.0
        top = min(found.levels, default=None)
        typical = _TYPICAL_MEANS[variable.short_name] if top is None else STANDARD_GRAVITY * standard_height(top)
        field = found.read(self._files.get(found.path), time.name, {time.name: slice(0, 1)}, top)[0]
        weights = np.cos(np.radians(found.orientation.grid.lat2d()))
        mean = float(np.nanmean(field * weights) / np.mean(weights)) if np.isfinite(field).any() else float("nan")
        ratio = mean / typical
        if not ratio > 0.0:
            raise DataError(f"{where} is in {units!r}, expected {variable.units!r}, and its first field does not tell")
        # The two means differ by the factor; the border is their geometric mean.
        is_converted = ratio > variable.cmip_factor**-0.5
        said = f"in {units!r}" if units else "without units"
        meant = variable.units if is_converted else variable.cmip_units
        self._notify(f"{array.name} is {said}: read as {meant!r} by the size of its values", found.path)
        return 1.0 if is_converted else variable.cmip_factor
