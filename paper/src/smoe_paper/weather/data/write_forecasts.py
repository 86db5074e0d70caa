"""Writes forecasts in WeatherBench's layout: `(init_time, lead_time, lat, lon)`, NetCDF or Zarr.

A variable has WeatherBench's short name (`z`, `t`, `t2m`, `tp`) and its pressure level as the attribute `level`; if it
is forecast on several levels, each has the name of its channel (`z_500`, `z_850`).
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from smoe._files import temporary_folder
from smoe.errors import DataError
from smoe.gridded._output import WRITING, explain_library_error
from smoe.gridded.grid import Grid
from smoe_paper.atmosphere.variables import VARIABLES, parse_channel

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
