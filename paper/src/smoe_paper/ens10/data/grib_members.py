"""Reads members in GRIB. The headers of a file are read once, fields on demand."""

from __future__ import annotations

from typing import Any

import numpy as np

from smoe._integrity import check_grib_file
from smoe.errors import DataError
from smoe.gridded._datasets import damage_as_data_error, import_cfgrib
from smoe_paper.ens10.data.global_grid import check_global
from smoe_paper.ens10.data.member_files import MemberFile, OpenMembers, check_numbers
from smoe_paper.ens10.data.variables import LEAD_DAYS, EnsembleTask, EnsembleVariable

_STEP_HOURS = 24 * LEAD_DAYS
_KEYS = ("shortName", "dataDate:int", "dataTime:int", "endStep:int", "level:int", "number:int")
_GRID_KEYS = (
    "gridType",
    "Ni:int",
    "Nj:int",
    "iScansNegatively:int",
    "jScansPositively:int",
    "jPointsAreConsecutive:int",
    "latitudeOfFirstGridPointInDegrees:float",
    "latitudeOfLastGridPointInDegrees:float",
    "longitudeOfFirstGridPointInDegrees:float",
    "longitudeOfLastGridPointInDegrees:float",
)


class GribMembers(OpenMembers):
    """Reads a file of one date, or a file as downloaded, which holds twenty years, three leads and eleven levels."""

    def __init__(self, file: MemberFile, task: EnsembleTask) -> None:
        messages = _import_messages()
        self._path = file.path
        with damage_as_data_error(file.path):
            check_grib_file(file.path)
            self._stream = messages.FileStream(str(file.path), errors="raise")
            # No index is written beside the data: the folder may be read-only, and an index may be out of date.
            index = messages.FileIndex.from_fieldset(self._stream, [*_KEYS, *_GRID_KEYS])
        self._offsets: dict[tuple[str, np.datetime64], dict[int, Any]] = {}
        wanted = {variable.grib_short_name for variable in task.variables}
        grids = set()
        for header, offsets in index.iter_index():
            name, date, hour, step, level, number, *grid = header
            if name not in wanted or step != _STEP_HOURS or (task.level is not None and level != task.level):
                continue
            start = _start(date, hour, file)
            members = self._offsets.setdefault((name, start), {})
            if len(offsets) > 1:
                raise DataError(f"{file.path} holds {name} of {start}, member {number}, {len(offsets)} times")
            members[number] = offsets[0]
            grids.add(tuple(grid))
        if not self._offsets:
            raise DataError(
                f"{file.path} holds no forecast of {', '.join(sorted(wanted))} for {_STEP_HOURS} h"
                + ("" if task.level is None else f" on {task.level} hPa")
            )
        if len(grids) > 1:
            raise DataError(f"{file.path} holds fields on {len(grids)} grids, expected one; regrid it first")
        self._read_grid(grids.pop())
        self.starts = np.array(sorted({start for _, start in self._offsets}), "datetime64[D]")
        for start in self.starts:
            for variable in task.variables:
                numbers = list(self._offsets.get((variable.grib_short_name, start), {}))
                check_numbers(numbers, f"{file.path}: {variable.grib_short_name} of {start}")

    def _read_grid(self, header: tuple[Any, ...]) -> None:
        kind, columns, rows, is_westward, is_northward, is_column_first, *_ = header
        where = str(self._path)
        if kind not in ("regular_ll", "regular_gg") or is_westward or is_column_first:
            raise DataError(f"{where} is on a grid of type {kind}, expected one in latitude and longitude; regrid it")
        self._is_northward = bool(is_northward)
        first = self._stream[next(iter(next(iter(self._offsets.values())).values()))]
        latitude = np.asarray(first["distinctLatitudes"], np.float64)
        longitude = np.asarray(first["distinctLongitudes"], np.float64)
        self._shape = (rows, columns)
        self._first_column = int(np.argmin(np.mod(longitude + 1e-6, 360.0)))
        self.grid = check_global(np.sort(latitude)[::-1], np.sort(np.mod(longitude, 360.0)), where)

    def read(self, variable: EnsembleVariable, start: np.datetime64) -> np.ndarray:
        """Returns all members of a variable, with missing values as NaN."""
        offsets = self._offsets[variable.grib_short_name, start.astype("datetime64[D]")]
        members = np.empty((len(offsets), *self._shape), np.float32)
        with damage_as_data_error(self._path, f"{variable.grib_short_name} of {start}"):
            for place, number in enumerate(sorted(offsets)):
                message = self._stream[offsets[number]]
                values = np.asarray(message["values"])
                field = np.where(values == message["missingValue"], np.nan, values).reshape(self._shape)
                field = field[::-1] if self._is_northward else field
                members[place] = np.roll(field, -self._first_column, axis=1)
        return members


def _start(date: object, hour: object, file: MemberFile) -> np.datetime64:
    if not isinstance(date, int) or hour != 0:
        raise DataError(f"{file.path} holds a forecast from {date} at {hour}, expected starts at 0 h")
    text = f"{date:08d}"
    return np.datetime64(f"{text[:4]}-{text[4:6]}-{text[6:]}", "D")


def _import_messages() -> Any:
    import_cfgrib()
    from cfgrib import messages

    return messages
