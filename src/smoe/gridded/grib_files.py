"""GRIB files as xarray data sets, read in a process of their own: ecCodes ends its process on some damaged files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smoe.confined_process import ConfinedReader
from smoe.errors import missing_package, naming_extras
from smoe.gridded.grib_integrity import check_grib_file
from smoe.gridded.open_files import damage_as_data_error, import_xarray

if TYPE_CHECKING:
    import xarray as xr

GRIB_ENDINGS = (".grib", ".grib2", ".grb", ".grb2")


class FieldHeader(NamedTuple):
    """What is known of a variable without reading its values."""

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype
    attrs: dict[str, Any]


class GribDataset:
    """A GRIB file, opened by cfgrib; made in the other process.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        # No index beside the file: it would be written there, and one that is there is a pickle, which can hold code.
        self._dataset = import_xarray().open_dataset(
            path, engine="cfgrib", decode_timedelta=False, backend_kwargs={"indexpath": "", "errors": "raise"}
        )

    def header(self) -> tuple[xr.Dataset, dict[str, FieldHeader]]:
        """Returns the coordinates and attributes, and what is known of each variable."""
        dataset = self._dataset
        fields = {
            str(name): FieldHeader(tuple(map(str, field.dims)), field.shape, field.dtype, dict(field.attrs))
            for name, field in dataset.data_vars.items()
        }
        return dataset.drop_vars(list(dataset.data_vars)).load(), fields

    def read(self, name: str, key: tuple[Any, ...]) -> np.ndarray:
        """Returns a part of a variable; arrays in the key select along one dimension each."""
        return np.asarray(self._dataset.variables[name][key].values)


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
    xr = import_xarray()
    from xarray.core import indexing

    import_cfgrib()
    with damage_as_data_error(path):
        check_grib_file(path)
        reader = ConfinedReader(path, f"{__name__}:GribDataset", path)
        coordinates, fields = reader.call("header")
    variables = {}
    for name, header in fields.items():
        values = indexing.LazilyIndexedArray(_make_array(reader, path, name, header))
        variables[name] = xr.Variable(header.dims, values, header.attrs)
    return coordinates.assign(variables)


def _make_array(reader: ConfinedReader, path: Path, name: str, header: FieldHeader) -> Any:
    from xarray.backends import BackendArray
    from xarray.core import indexing

    class ConfinedArray(BackendArray):
        """A variable whose values are in the other process."""

        shape, dtype = header.shape, header.dtype

        def __getitem__(self, key: Any) -> Any:
            return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._read)

        def _read(self, key: tuple[Any, ...]) -> np.ndarray:
            with damage_as_data_error(path, name):
                return reader.call("read", name, key)

    return ConfinedArray()
