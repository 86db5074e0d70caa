"""The layouts of WeatherBench, WeatherBench 2 and CMIP."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from smoe._integrity import check_zarr_array, check_zarr_coordinates
from smoe.errors import DataError, naming_extras
from smoe.gridded import OpenFiles, damage_as_data_error, import_xarray, open_netcdf
from smoe_paper.atmosphere.axes import Orientation, TimeAxis, find_levels, read_time_axis
from smoe_paper.atmosphere.grid import GRIDS
from smoe_paper.atmosphere.variables import (
    CONSTANTS,
    HOURLY_PRECIPITATION,
    STANDARD_GRAVITY,
    VARIABLES,
    Variable,
    canonical_units,
    check_constant_name,
    check_units,
    standard_height,
)
from smoe_paper.weather.data.series import FieldSeries, Piece, SeriesSource
from smoe_paper.weather.data.source import WeatherSource, check_constant, grid_constant

if TYPE_CHECKING:
    import xarray as xr


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


# Names of the constants in such stores, and their divisors.
_CONSTANTS = {"lsm": ("land_sea_mask", 1.0), "orography": ("geopotential_at_surface", STANDARD_GRAVITY),
              "slt": ("soil_type", 1.0)}  # fmt: skip


class WeatherBench2Source(SeriesSource):
    """Reads a Zarr store of version 2 or 3.

    Args:
        path: Folder of the store.
        resolution: Name of the required grid; None accepts any of `GRIDS`.
    """

    kind = "weatherbench2"

    def __init__(self, path: Path, resolution: str | None):
        super().__init__(path, OpenFiles(_open_zarr))
        grid = None if resolution is None else GRIDS[resolution]
        dataset = self._files.get(path)
        known = [*VARIABLES.values(), HOURLY_PRECIPITATION]
        names = {variable.folder: _name(variable) for variable in known}
        present = [variable for variable in known if names[variable.folder] in dataset.data_vars]
        if not present:
            raise DataError(
                f"{path} has the variables {', '.join(map(str, dataset.data_vars)) or '(none)'}, expected "
                f"WeatherBench-2's: {', '.join(names.values())}"
            )
        with damage_as_data_error(path, "time"):
            axis = read_time_axis(dataset[names[present[0].folder]], str(path))
        first, last = (int(str(time)[:4]) for time in (axis.start, axis.last))
        pieces = [Piece(path, range(first, last + 1))]
        series: dict[str, list[FieldSeries]] = {}
        hourly_precipitation = None
        for variable in present:
            found = _StoreSeries(variable, pieces, (names[variable.folder],), self._files, grid, self._notify)
            if variable is HOURLY_PRECIPITATION:
                hourly_precipitation = found
            else:
                series[variable.short_name] = [found]
        self._set_series(series, hourly_precipitation)

    @property
    def constant_names(self) -> tuple[str, ...]:
        """Returns the constants of the store, and those that follow from the grid."""
        inside = self._files.get(self.path).data_vars
        return tuple(
            n for n in CONSTANTS if n in ("lat2d", "lon2d") or (n in _CONSTANTS and _CONSTANTS[n][0] in inside)
        )

    def read_constant(self, name: str) -> np.ndarray:
        """Returns a constant of the store; `lat2d` and `lon2d` are computed."""
        check_constant_name(name)
        computed = grid_constant(name, self.grid)
        if computed is not None:
            return computed
        store_name, divisor = _CONSTANTS[name]
        if store_name not in self._files.get(self.path).data_vars:
            raise DataError(f"{self.path} has no {store_name}, needed for {name}")
        with damage_as_data_error(self.path, store_name):
            check_zarr_array(self.path, store_name)
        where = f"{self.path}: {store_name}"
        field = self._read_constant_file(self.path, store_name, where)
        return check_constant((field / np.float32(divisor)).astype(np.float32), name, where)

    def _expected_name(self, variable: Variable) -> str:
        return variable.store_name


class _StoreSeries(FieldSeries):
    def _check_complete(self, piece: Piece, array: xr.DataArray, steps_a_day: int) -> None:
        is_late = self.variable.is_accumulated and array.dims[0] == "time"
        check_zarr_array(piece.path, str(array.name), may_begin_late=steps_a_day if is_late else 0)


def _name(variable: Variable) -> str:
    return variable.folder if variable is HOURLY_PRECIPITATION else variable.store_name


def _open_zarr(path: Path) -> xr.Dataset:
    xr = import_xarray()
    with naming_extras("reading a Zarr store"):
        import zarr
    check_zarr_coordinates(path)
    # A request for consolidated metadata that do not exist would warn.
    group = zarr.open_group(path, mode="r")
    is_consolidated = group.metadata.consolidated_metadata is not None
    return xr.open_dataset(path, engine="zarr", chunks=None, cache=False, consolidated=is_consolidated)


PERIOD_FILE = re.compile(r".+_(?P<start>[0-9]{4,12})-(?P<end>[0-9]{4,12})(?:_[0-9.]+deg)?\.nc")

# Global means in the library's units, which show whether values were converted. The factors are at least 10.
_TYPICAL_MEANS = {"tisr": 1.22e6, "tp": 6.8e-4}


class CmipSource(WeatherBenchSource):
    """Reads one resolution's folder of CMIP fields, 6-hourly, in files of several years."""

    kind = "cmip"

    def _variable_of(self, directory: Path) -> Variable | None:
        by_cmip_name = {variable.cmip_name: variable for variable in VARIABLES.values() if variable.cmip_name}
        if directory.name == "total_precipitation":
            return VARIABLES["tp"]
        return by_cmip_name.get(directory.name) or super()._variable_of(directory)

    def _find_pieces(self, directory: Path) -> list[Piece]:
        pieces = []
        for path in directory.iterdir():
            match = PERIOD_FILE.fullmatch(path.name)
            if match:
                pieces.append(Piece(path, range(*_years(match["start"], match["end"], path))))
        return sorted(pieces, key=lambda piece: (piece.years[0], piece.path.name))

    def _make_series(self, variable: Variable, pieces: list[Piece]) -> FieldSeries:
        names = (variable.short_name, variable.cmip_name) if variable.cmip_name else (variable.short_name,)
        return _CmipSeries(variable, pieces, names, self._files, self._expected_grid, self._notify)

    def _constants_file(self) -> Path | None:
        # The archive has no constants on these grids; Rasp and Thuerey use those of ERA5.
        folders = [self.path, *(parent / self.path.name for parent in list(self.path.parents)[1:4])]
        for folder in folders:
            found = self._constants_in(folder)
            if found is not None:
                if folder != self.path:
                    self._notify("constants are WeatherBench's", found)
                return found
        return None


class _CmipSeries(FieldSeries):
    def place_in_time(self, axis: TimeAxis, where: str) -> TimeAxis:
        """Means over some hours carry the time of their middle; they belong to their end."""
        if self.variable.cmip_name not in ("pr", "rsdt"):
            return axis
        if self.variable.cmip_name == "pr" and axis.step not in (0, 360):
            raise DataError(f"{where} has steps of {axis.step} minutes, expected 6-hour means")
        minutes = int((axis.start - np.datetime64("1800-01-01", "m")).astype(np.int64))
        shift = -minutes % 180 if self.variable.cmip_name == "rsdt" else -minutes % 360
        return axis.shifted(shift)

    def unit_factor(self, array: xr.DataArray, orientation: Orientation, piece: Piece, where: str) -> float:
        """Returns the factor of the archive's units, or 1 for values that are already converted.

        Regridding programs rename and convert a variable but keep its attributes. So under WeatherBench's name the
        archive's units, or none, are no evidence, and the size of the values decides.
        """
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
        ratio = self._mean_of_first_field(array, orientation, piece) / self._typical_mean(array, where)
        if not ratio > 0.0:
            raise DataError(f"{where} is in {units!r}, expected {variable.units!r}, and its first field does not tell")
        # The two means differ by the factor; the border is their geometric mean.
        is_converted = ratio > variable.cmip_factor**-0.5
        said = f"in {units!r}" if units else "without units"
        meant = variable.units if is_converted else variable.cmip_units
        self._notify(f"{array.name} is {said}: read as {meant!r} by the size of its values", piece.path)
        return 1.0 if is_converted else variable.cmip_factor

    def _mean_of_first_field(self, array: xr.DataArray, orientation: Orientation, piece: Piece) -> float:
        rows = {orientation.latitude, orientation.longitude}
        first = {dim: 0 for dim in array.dims if dim not in rows}
        if self.variable.has_levels:
            axis, levels, _ = find_levels(array, str(piece.path))
            if axis is not None:
                first[axis] = int(np.argmin(levels))
        with damage_as_data_error(piece.path, str(array.name)):
            field = orientation.turn(array.isel(first).transpose(orientation.latitude, orientation.longitude).values)
        weights = np.cos(np.radians(orientation.grid.lat2d()))
        return float(np.nanmean(field * weights) / np.mean(weights)) if np.isfinite(field).any() else float("nan")

    def _typical_mean(self, array: xr.DataArray, where: str) -> float:
        if self.variable.short_name != "z":
            return _TYPICAL_MEANS[self.variable.short_name]
        return STANDARD_GRAVITY * standard_height(min(find_levels(array, where)[1]))


def _years(start: str, end: str, path: Path) -> tuple[int, int]:
    # 185001010600-185501010000 ends with the first hour of an otherwise absent year.
    first, last = int(start[:4]), int(end[:4])
    if end[4:8] == "0101" and last > first:
        last -= 1
    if last < first:
        raise DataError(f"{path}: its name says a period from {start} to {end}, expected the earlier time first")
    return first, last + 1


Kind = Literal["auto", "weatherbench", "cmip", "weatherbench2"]

# Folder names of the resolutions; 1.40625 degrees is also called 1.4.
_FOLDERS = {**{name: name for name in GRIDS}, "1.4deg": "1.40625deg"}
_PERIOD = re.compile(r".*_[0-9]{6,12}-[0-9]{6,12}(_.*)?\.nc")
_ZARR_FILES = ("zarr.json", ".zgroup", ".zmetadata")


def open_source(path: Path, *, kind: Kind = "auto", resolution: str | None = None) -> WeatherSource:
    """Opens weather data as downloaded.

    Args:
        path: A WeatherBench root, its folder of one resolution, a similar folder of the CMIP archive, or a Zarr store
            with WeatherBench-2's names.
        kind: Layout of the data; `auto` recognises it.
        resolution: One of `GRIDS`, if the root holds several.

    Raises:
        DataError: If it is none of these; the message describes the contents.
    """
    path = Path(path)
    if resolution is not None and resolution not in _FOLDERS:
        raise DataError(f"no resolution is named {resolution!r}; there are {', '.join(GRIDS)}")
    if not path.exists():
        raise DataError(f"{path} does not exist; expected a folder of weather data")
    if kind not in ("auto", "weatherbench", "cmip", "weatherbench2"):
        raise DataError(f"no kind of weather data is named {kind!r}; there are weatherbench, cmip, weatherbench2")
    if not path.is_dir():
        raise DataError(f"{path} is a file; expected the folder that holds a folder for each variable, or a Zarr store")
    is_zarr = any((path / name).exists() for name in _ZARR_FILES)
    if kind == "weatherbench2" or (kind == "auto" and is_zarr):
        if not is_zarr:
            raise DataError(f"{path} is not a Zarr store: it has none of {', '.join(_ZARR_FILES)}")

        return WeatherBench2Source(path, None if resolution is None else _FOLDERS[resolution])

    folder, found = _find_folder(path, resolution, prefer_cmip=kind == "cmip")
    if kind == "auto":
        kind = "cmip" if _has_period_files(folder) else "weatherbench"
    if kind == "cmip":
        return CmipSource(folder, found)

    return WeatherBenchSource(folder, found)


def _find_folder(path: Path, resolution: str | None, prefer_cmip: bool) -> tuple[Path, str | None]:
    wanted = None if resolution is None else _FOLDERS[resolution]
    if path.name in _FOLDERS:
        found = _FOLDERS[path.name]
        if wanted not in (None, found):
            raise DataError(f"{path} is the folder of {found}, asked for was {wanted}")
        return path, found
    roots = [path, *sorted(path.glob("CMIP/*")), *sorted(path.glob("MPI-ESM*"))]
    if prefer_cmip:
        roots = [*roots[1:], path]
    for root in roots:
        folders = {_FOLDERS[name]: root / name for name in _FOLDERS if (root / name).is_dir()}
        if wanted is not None and wanted in folders:
            return folders[wanted], wanted
        if wanted is None and len(folders) > 1:
            raise DataError(f"{root} holds the resolutions {', '.join(folders)}; choose one")
        if wanted is None and folders:
            name, folder = folders.popitem()
            return folder, name
    if any(each.is_dir() and any(each.glob("*.nc")) for each in path.iterdir()):
        return path, wanted
    names = sorted(each.name for each in path.iterdir())
    listed = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    expected = wanted or ", ".join(GRIDS)
    raise DataError(
        f"{path} holds {listed or 'nothing'}; expected a folder {expected} with "
        "<variable>/<variable>_<year>_5.625deg.nc, that folder itself, or a Zarr store with WeatherBench-2's names"
    )


def _has_period_files(folder: Path) -> bool:
    return any(_PERIOD.fullmatch(path.name) for each in folder.iterdir() if each.is_dir() for path in each.glob("*.nc"))
