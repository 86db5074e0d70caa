"""Files of forecasts: read and written."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from smoe._files import temporary_folder
from smoe._integrity import check_netcdf_file, check_zarr_array, check_zarr_coordinates
from smoe.errors import DataError
from smoe.gridded import WRITING, damage_as_data_error, explain_library_error, import_xarray
from smoe_paper.atmosphere.axes import LEVEL_NAMES, Orientation, find_levels, find_orientation
from smoe_paper.atmosphere.grid import Grid
from smoe_paper.atmosphere.variables import VARIABLES, Variable, check_units, parse_channel

if TYPE_CHECKING:
    import xarray as xr


_INIT_NAMES = ("init_time",)
_LEAD_NAMES = ("lead_time", "prediction_timedelta", "step")
# The levels of WeatherBench's own files, which do not record them.
_USUAL_LEVELS = {"z": 500, "t": 850}


@dataclass(frozen=True)
class _Field:
    """Place of a channel in a file: its variable, and its index on the level axis, if there is one."""

    name: str
    orientation: Orientation
    level_axis: str | None = None
    level_number: int = 0


class ForecastFile:
    """Forecasts `(init_time, lead_time, lat, lon)` of a NetCDF or Zarr file.

    The leads may be hours or time differences, the latitudes run either way, the longitudes begin anywhere; a level is
    an axis, a coordinate, the attribute `level`, part of the name (`z_500`), or missing for `z` (500) and `t` (850).

    Args:
        path: File, or folder of a Zarr store.
        channels: Channels to read.
        grid: Required grid of the fields.

    Attributes:
        init_times: Initial times, datetime64[h].
        lead_hours: Lead times in hours.
        channels: Channels of the file.
        missing: Requested channels that are not in the file.
        notices: Corrections and assumptions.

    Raises:
        DataError: If the file cannot be read, has another layout, another grid or other units, or none of the channels.
    """

    def __init__(self, path: Path, channels: Sequence[str], grid: Grid) -> None:
        self.path = path
        self.notices: list[str] = []
        with damage_as_data_error(path):
            self._dataset = _open(path)
        self._init = self._axis(_INIT_NAMES)
        self._lead = self._axis(_LEAD_NAMES)
        self.init_times = self._read_times()
        self.lead_hours = self._read_leads()
        found = {name: self._find(name, grid) for name in channels}
        self._fields = {name: field for name, field in found.items() if field is not None}
        self.channels = tuple(self._fields)
        self.missing = tuple(name for name, field in found.items() if field is None)
        if not self.channels:
            raise DataError(
                f"{path} holds {', '.join(map(str, self._dataset.data_vars)) or 'no variables'}, "
                f"none of the forecasts asked for: {', '.join(channels)}"
            )

    def read(self, channel: str, inits: slice, lead: int) -> np.ndarray:
        """Returns forecasts of some initial times for one lead, south to north, 0 eastwards, float32, `(B, H, W)`."""
        field = self._fields[channel]
        array = self._dataset[field.name].isel({self._init: inits, self._lead: lead})
        if field.level_axis is not None:
            array = array.isel({field.level_axis: field.level_number})
        rows, columns = field.orientation.latitude, field.orientation.longitude
        with damage_as_data_error(self.path, f"{channel} from {self.init_times[inits][0]} on"):
            return field.orientation.turn(array.transpose(self._init, rows, columns).values)

    def close(self) -> None:
        """Closes the file."""
        self._dataset.close()

    def _axis(self, names: tuple[str, ...]) -> str:
        found = [name for name in names if name in self._dataset.dims]
        if len(found) == 1 and found[0] in self._dataset.coords:
            return found[0]
        if len(found) == 1:
            raise DataError(f"{self.path} does not say what its {found[0]} are: the dimension has no coordinate")
        has = ", ".join(f"{name} ({size})" for name, size in self._dataset.sizes.items())
        hint = ""
        if "time" in self._dataset.dims:
            # Files of WeatherBench's own scripts use it for the valid time of direct forecasts, others for the start.
            hint = "; if `time` is the time at which the forecasts start, rename it to init_time"
        raise DataError(
            f"{self.path} has the dimensions {has}, expected (init_time, lead_time, lat, lon): "
            f"there is no {' or '.join(names)}{hint}"
        )

    def _read_times(self) -> np.ndarray:
        values = self._dataset[self._init].values
        if not np.issubdtype(values.dtype, np.datetime64):
            raise DataError(f"{self.path}: {self._init} is of type {values.dtype}, expected times")
        hours = values.astype("datetime64[h]")
        if (np.isnat(values) | (hours != values)).any():
            raise DataError(f"{self.path}: {self._init} holds times that are not full hours, such as {values[0]}")
        if len(hours) == 0 or (np.diff(hours) <= np.timedelta64(0, "h")).any():
            raise DataError(f"{self.path}: {self._init} must ascend, each time once, and hold at least one")
        return hours

    def _read_leads(self) -> tuple[int, ...]:
        values = self._dataset[self._lead].values
        if np.issubdtype(values.dtype, np.timedelta64):
            hours = values / np.timedelta64(1, "h")
        elif np.issubdtype(values.dtype, np.number):
            hours = values.astype(np.float64)
            self.notices.append(f"{self._lead} has no units: read as hours")
        else:
            raise DataError(f"{self.path}: {self._lead} is of type {values.dtype}, expected hours or time differences")
        if not (len(hours) and np.isfinite(hours).all() and (hours == np.rint(hours)).all() and hours.min() >= 0):
            raise DataError(f"{self.path}: {self._lead} must hold full hours from 0 on, got {hours.tolist()[:5]}")
        return tuple(int(value) for value in hours)

    def _find(self, channel: str, grid: Grid) -> _Field | None:
        parsed = parse_channel(channel)
        variable = VARIABLES[parsed.variable]
        names = (channel, variable.short_name, variable.folder, variable.store_name)
        name = next((name for name in names if name in self._dataset.data_vars), None)
        if name is None:
            return None
        if self.path.is_dir():
            check_zarr_array(self.path, name)
        array = self._dataset[name]
        where = f"{name} of {self.path}"
        check_units(variable, array.attrs.get("units"), where)
        orientation = find_orientation(array, grid, where)
        for notice in orientation.notices():
            if notice not in self.notices:
                self.notices.append(notice)
        level_axis, level_number = self._find_level(array, variable, name == channel, parsed.level, where)
        if level_number is None:
            return None
        expected = {self._init, self._lead, orientation.latitude, orientation.longitude, *filter(None, [level_axis])}
        if set(array.dims) != expected:
            raise DataError(f"{where} has the dimensions {array.dims}, expected (init_time, lead_time, lat, lon)")
        return _Field(name, orientation, level_axis, level_number)

    def _find_level(
        self, array: xr.DataArray, variable: Variable, is_named_so: bool, level: int | None, where: str
    ) -> tuple[str | None, int | None]:
        """Returns the name of the level axis, if there is one, and the index of the level; None for another level."""
        if level is None or (is_named_so and not set(LEVEL_NAMES) & set(array.dims)):
            return None, 0
        if any(name in array.coords for name in LEVEL_NAMES):
            axis, levels, _ = find_levels(array, where)
        elif "level" in array.attrs:
            axis, levels = None, (int(array.attrs["level"]),)
        elif variable.short_name in _USUAL_LEVELS:
            axis, levels = None, (_USUAL_LEVELS[variable.short_name],)
            self.notices.append(f"{array.name} does not say its level: supposed to be at {levels[0]} hPa")
        else:
            raise DataError(
                f"{where} does not say its level; give it the attribute level, or the name {array.name}_{level}"
            )
        return (axis, levels.index(level)) if level in levels else (None, None)


def _open(path: Path) -> xr.Dataset:
    xarray = import_xarray()
    if path.is_dir():
        check_zarr_coordinates(path)
        return xarray.open_dataset(path, engine="zarr", chunks=None, consolidated=False, decode_timedelta=True)
    if not path.exists():
        raise DataError(f"there are no forecasts in {path}")
    check_netcdf_file(path)
    return xarray.open_dataset(path, engine="netcdf4", cache=False, decode_timedelta=True)


DIMENSIONS = ("init_time", "lead_time", "lat", "lon")
ENDINGS = (".nc", ".zarr")

# Number of initial times of one lead in a chunk: a quarter of a megabyte at 5.625 degrees.
_INITS_PER_CHUNK = 32
_EPOCH = np.datetime64("1970-01-01T00", "h")


class ForecastWriter(ABC):
    """Writes forecasts piece by piece; only the current piece is in memory.

    Args:
        names: Names of the variables in the file, by channel.
        coordinates: Values of the dimensions.
    """

    def __init__(self, names: Mapping[str, str], coordinates: Mapping[str, np.ndarray]) -> None:
        self.names = names
        self.shape = tuple(len(coordinates[name]) for name in DIMENSIONS)
        self._is_written = np.zeros((len(names), *self.shape[:2]), dtype=bool)

    def write(self, channel: str, first_init: int, lead: int, fields: np.ndarray) -> None:
        """Writes the forecasts of some consecutive initial times.

        Args:
            channel: Channel, such as `z_500`.
            first_init: Index of the first initial time.
            lead: Index of the lead time.
            fields: Fields in physical units, south to north and 0 eastwards, `(B, H, W)`.

        Raises:
            DataError: If a value is not finite.
        """
        if not np.isfinite(fields).all():
            raise DataError(
                f"the forecast of {channel} holds {np.count_nonzero(~np.isfinite(fields))} values not finite"
            )
        inits = slice(first_init, first_init + len(fields))
        if fields.shape[1:] != self.shape[2:] or inits.stop > self.shape[0]:
            raise ValueError(f"fields of shape {fields.shape} from {first_init} on do not fit the file's {self.shape}")
        self._write(self.names[channel], inits, lead, fields.astype(np.float32))
        self._is_written[list(self.names).index(channel), inits, lead] = True

    def check_complete(self) -> None:
        """Raises an error if a field was not written."""
        if not self._is_written.all():
            raise ValueError(
                f"{np.count_nonzero(~self._is_written)} of {self._is_written.size} fields were not written"
            )

    @abstractmethod
    def _write(self, name: str, inits: slice, lead: int, fields: np.ndarray) -> None:
        """Writes a piece of a variable."""

    @abstractmethod
    def close(self) -> None:
        """Flushes everything to disk."""


@contextmanager
def open_forecast_writer(
    path: Path,
    channels: Sequence[str],
    init_times: np.ndarray,
    lead_hours: Sequence[int],
    grid: Grid,
    attributes: Mapping[str, str] | None = None,
) -> Iterator[ForecastWriter]:
    """Returns a writer of a new file, which gets its name when it is complete.

    Args:
        path: Path that ends in `.nc` or `.zarr`.
        channels: Channels to write.
        init_times: Initial times, datetime64, ascending.
        lead_hours: Lead times, ascending.
        grid: Grid of the fields.
        attributes: Attributes of the file, such as the run that made it.

    Raises:
        DataError: If the path has another ending, exists, or cannot be written.
    """
    check_output(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    coordinates = {
        "init_time": (init_times.astype("datetime64[h]") - _EPOCH).astype(np.int64),
        "lead_time": np.asarray(lead_hours, np.int64),
        "lat": np.asarray(grid.latitude),
        "lon": np.asarray(grid.longitude),
    }
    kind = _NetCDFWriter if path.suffix == ".nc" else _ZarrWriter
    # Under its own name: some libraries find the format by the ending.
    with temporary_folder(WRITING, path.parent) as folder:
        temporary = folder / path.name
        names, described = variable_names(channels), {"Conventions": "CF-1.8", **(attributes or {})}
        try:
            writer = kind(temporary, names, coordinates, described)
            try:
                yield writer
                writer.check_complete()
            finally:
                writer.close()
        except RuntimeError as error:
            raise explain_library_error(path, error) from error
        os.rename(temporary, path)


def check_output(path: Path) -> None:
    """Refuses a path to which forecasts cannot be written.

    Raises:
        DataError: If it has another ending or exists.
    """
    if path.suffix not in ENDINGS:
        raise DataError(f"forecasts are written as {' or '.join(ENDINGS)}, got {path}")
    if path.exists():
        raise DataError(f"{path} exists already; remove it or choose another name")


def variable_names(channels: Sequence[str]) -> dict[str, str]:
    """Returns the name of each channel in the file."""
    count = Counter(parse_channel(name).variable for name in channels)
    return {
        name: parse_channel(name).variable if count[parse_channel(name).variable] == 1 else name for name in channels
    }


def _attributes_of(channel: str) -> dict[str, Any]:
    parsed = parse_channel(channel)
    variable = VARIABLES[parsed.variable]
    level = {} if parsed.level is None else {"level": np.int32(parsed.level), "level_units": "hPa"}
    return {"units": variable.units, "long_name": variable.folder, **level}


_COORDINATE_ATTRIBUTES = {
    "init_time": {"units": "hours since 1970-01-01 00:00:00", "calendar": "proleptic_gregorian", "long_name": "start"},
    "lead_time": {"units": "hours", "long_name": "time since init_time"},
    "lat": {"units": "degrees_north", "standard_name": "latitude"},
    "lon": {"units": "degrees_east", "standard_name": "longitude"},
}


class _NetCDFWriter(ForecastWriter):
    def __init__(
        self, path: Path, names: Mapping[str, str], coordinates: Mapping[str, np.ndarray], attributes: Mapping[str, str]
    ) -> None:
        import netCDF4

        super().__init__(names, coordinates)
        self._path = path
        self._file = netCDF4.Dataset(path, "w")
        self._file.setncatts(dict(attributes))
        for name in DIMENSIONS:
            self._file.createDimension(name, len(coordinates[name]))
            axis = self._file.createVariable(name, coordinates[name].dtype, (name,))
            axis.setncatts(_COORDINATE_ATTRIBUTES[name])
            axis[:] = coordinates[name]
        for channel, name in names.items():
            self._file.createVariable(name, "f4", DIMENSIONS, fill_value=np.float32("nan")).setncatts(
                _attributes_of(channel)
            )

    def _write(self, name: str, inits: slice, lead: int, fields: np.ndarray) -> None:
        self._file[name][inits, lead] = fields

    def close(self) -> None:
        self._file.close()
        with self._path.open("rb") as file:
            os.fsync(file.fileno())


class _ZarrWriter(ForecastWriter):
    def __init__(
        self, path: Path, names: Mapping[str, str], coordinates: Mapping[str, np.ndarray], attributes: Mapping[str, str]
    ) -> None:
        import zarr

        super().__init__(names, coordinates)
        # Version 2, as in WeatherBench-2's stores, which older readers support.
        self._group = zarr.open_group(path, mode="w-", zarr_format=2, attributes=dict(attributes))
        for name in DIMENSIONS:
            self._group.create_array(
                name,
                data=coordinates[name],
                # Without a fill value, 0 would be used, and longitude 0 would be read as missing.
                fill_value=None,
                attributes={"_ARRAY_DIMENSIONS": [name], **_COORDINATE_ATTRIBUTES[name]},
            )
        for channel, name in names.items():
            attrs = {
                key: int(value) if isinstance(value, np.integer) else value
                for key, value in _attributes_of(channel).items()
            }
            self._group.create_array(
                name,
                shape=self.shape,
                dtype="f4",
                chunks=(min(_INITS_PER_CHUNK, self.shape[0]), 1, *self.shape[2:]),
                fill_value=float("nan"),
                # A missing chunk is then a lost one.
                config={"write_empty_chunks": True},
                attributes={"_ARRAY_DIMENSIONS": list(DIMENSIONS), **attrs},
            )
        zarr.consolidate_metadata(self._group.store)

    def _write(self, name: str, inits: slice, lead: int, fields: np.ndarray) -> None:
        self._group[name][inits, lead] = fields  # type: ignore[index]

    def close(self) -> None:
        self._group.store.close()
