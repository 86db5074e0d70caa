"""Recognises an archive of weather data by its files and opens it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from smoe.errors import DataError
from smoe_paper.atmosphere.grids import GRIDS
from smoe_paper.weather.data.source import WeatherSource

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
        from smoe_paper.weather.data.weatherbench2 import WeatherBench2Source

        return WeatherBench2Source(path, None if resolution is None else _FOLDERS[resolution])

    folder, found = _find_folder(path, resolution, prefer_cmip=kind == "cmip")
    if kind == "auto":
        kind = "cmip" if _has_period_files(folder) else "weatherbench"
    if kind == "cmip":
        from smoe_paper.weather.data.cmip import CmipSource

        return CmipSource(folder, found)
    from smoe_paper.weather.data.weatherbench import WeatherBenchSource

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
