"""GRIB files as xarray data sets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from smoe._integrity import check_grib_file
from smoe.errors import missing_package, naming_extras
from smoe.gridded.open_files import damage_as_data_error, import_xarray

if TYPE_CHECKING:
    import xarray as xr

GRIB_ENDINGS = (".grib", ".grib2", ".grb", ".grb2")


def import_cfgrib() -> None:
    """Imports cfgrib, or raises an error that names its extra."""
    try:
        with naming_extras("reading GRIB"):
            import cfgrib  # noqa: F401
    except RuntimeError as error:
        raise missing_package("reading GRIB", "eccodes") from error


def open_grib(path: Path) -> xr.Dataset:
    """Opens a GRIB file; values are read when they are asked for.

    Raises:
        DataError: If the file is damaged.
        MissingPackageError: If cfgrib is not installed.
    """
    import_cfgrib()
    with damage_as_data_error(path):
        check_grib_file(path)
        # No index beside the file: it would be written there, and one that is there is a pickle, which can hold code.
        return import_xarray().open_dataset(
            path, engine="cfgrib", decode_timedelta=False, backend_kwargs={"indexpath": "", "errors": "raise"}
        )
