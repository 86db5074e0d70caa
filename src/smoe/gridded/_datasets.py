"""Opens NetCDF, Zarr and GRIB by xarray, and says in one line what is damaged."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import TYPE_CHECKING, Any

from smoe._integrity import check_grib_file, check_netcdf_file
from smoe.errors import DataError, missing_package, naming_extras

if TYPE_CHECKING:
    import xarray as xr


class OpenFiles:
    """The files used last stay open, for a year's channels come from few files.

    Args:
        open_file: Checks a file and opens it.
        capacity: How many stay open.
    """

    def __init__(self, open_file: Callable[[Path], xr.Dataset], capacity: int = 12):
        self._open_file = open_file
        self._capacity = capacity
        self._open: OrderedDict[Path, xr.Dataset] = OrderedDict()
        self._lock = Lock()

    def get(self, path: Path) -> xr.Dataset:
        """The file's data set; nothing but its coordinates is read. Threads may call it."""
        with self._lock:
            if path in self._open:
                self._open.move_to_end(path)
                return self._open[path]
            with damage_as_data_error(path):
                dataset = self._open_file(path)
            while len(self._open) >= self._capacity:
                # Not closed here, for another thread may read it: xarray closes a file that nothing refers to.
                self._open.popitem(last=False)
            self._open[path] = dataset
            return dataset

    def __getstate__(self) -> dict[str, Any]:
        """Without the files that are open: another process opens its own."""
        return {"_open_file": self._open_file, "_capacity": self._capacity}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_open_file"], state["_capacity"])

    def close(self) -> None:
        """Closes all of them."""
        while self._open:
            self._open.popitem()[1].close()


@contextmanager
def damage_as_data_error(path: Path, what: str = "it") -> Iterator[None]:
    """Turns what the reading libraries raise into a DataError that names the file."""
    try:
        with warnings.catch_warnings():
            # Of doubtful dates and fill values: dates are checked here by their values, and NaNs are counted.
            warnings.simplefilter("ignore", import_xarray().SerializationWarning)
            yield
    except (DataError, ModuleNotFoundError):
        raise
    except FileNotFoundError:
        raise DataError(f"{path} does not exist") from None
    except PermissionError:
        raise DataError(f"{path} may not be read by this user") from None
    except Exception as error:
        # Each codec behind NetCDF and Zarr has errors of its own, down to RuntimeError and zlib.error.
        raise DataError(
            f"{path}: {what} cannot be read, the file is damaged or incomplete ({error}); copy or download it again"
        ) from error


def open_netcdf(path: Path) -> xr.Dataset:
    """Checks and opens one NetCDF file of any format; values stay on disk until they are asked for."""
    check_netcdf_file(path)
    return import_xarray().open_dataset(path, engine="netcdf4", cache=False, decode_timedelta=False)


def import_xarray() -> ModuleType:
    """The package xarray, which is not among the core's dependencies."""
    with naming_extras("reading gridded data"):
        import xarray as xr
    return xr


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
