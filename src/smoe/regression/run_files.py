"""Files of a fit beside its model: scores, pictures, predictions of any size."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from smoe.atomic_files import write_atomically
from smoe.diagnostics import fixed_choices
from smoe.errors import DataError
from smoe.gridded.cf_output import with_provenance, write_cf, write_cf_by_year
from smoe.gridded.open_files import import_xarray
from smoe.meshes.row_of_nodes import with_mesh
from smoe.regression.fitted import Fitted
from smoe.regression.grid_regressor import GridRegressor
from smoe.regression.scores import ScoreTable

SCORES = "scores.json"


def write_scores(folder: Path, which: str, table: ScoreTable) -> None:
    """Writes `scores.json` and the same as text, `scores.txt`."""
    text = json.dumps({"period": which, **table.to_plain()}, indent=1) + "\n"
    write_atomically(folder / SCORES, lambda file: file.write(text.encode()))
    write_atomically(folder / "scores.txt", lambda file: file.write(f"{which}\n{table}\n".encode()))


def write_predictions(
    model: GridRegressor, inputs: Any, output: Path, *, per_year: bool = False, overwrite: bool = False
) -> list[Path]:
    """Predicts a block of times at once, so that inputs may be larger than memory, and writes what was predicted.

    Returns:
        The files, one or one for each year.
    """
    xr = import_xarray()
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{output} cannot be written: {error.strerror or error}") from error
    with tempfile.TemporaryDirectory(prefix=".smoe-predict-", dir=output.parent) as folder:
        parts: list[Any] = []
        for number, block in enumerate(model.predict_blocks(inputs)):
            if number == 0:
                parts.append(block)
                continue
            if number == 1:
                parts[0] = _spill(parts[0], Path(folder) / "0.nc")
            parts.append(_spill(block, Path(folder) / f"{number}.nc"))
        first = parts[0]
        time = _time_of(first)
        whole = first
        if len(parts) > 1:
            whole = xr.concat(
                parts, dim=str(first[time].dims[0]), data_vars="minimal", coords="minimal", compat="override",
                join="exact",
            )  # fmt: skip
        if model.fitted.layout.mesh is not None:
            # As they were: blocks that were read again have numbers with NaN for integers with a fill value.
            whole = with_mesh(whole, *model.fitted.layout.mesh)
        whole = with_provenance(whole, f"predicted by smoe predict ({model.fitted.describe()})")
        try:
            if per_year:
                return write_cf_by_year(whole, output, time, overwrite=overwrite)
            write_cf(whole, output, overwrite=overwrite)
            return [output]
        finally:
            for part in parts:
                part.close()


def _spill(block: Any, path: Path) -> Any:
    write_cf(block, path)
    return import_xarray().open_dataset(path, engine="netcdf4", chunks={}, decode_timedelta=False)


def _time_of(dataset: Any) -> str:
    for name in ("valid_time", *map(str, dataset.coords)):
        if name in dataset.coords and dataset[name].ndim == 1 and dataset[name].dtype.kind in "MO":
            return name
    return ""


def grid_coordinates(fitted: Fitted) -> dict[str, np.ndarray] | None:
    """Coordinates of the rows and columns of a model's grid for pictures; None where a net has another grid."""
    grid = fitted.grid
    shapes = {tuple(gate.shape[1:]) for gate in fixed_choices(fitted.net).values()}
    if grid.kind in ("indexed", "curvilinear", "mesh") or grid.shape not in shapes:
        return None
    names = ("latitude", "longitude") if grid.kind == "latitude-longitude" else fitted.layout.variables[0][2][-2:]
    return dict(zip(names, (grid.rows, grid.columns), strict=True))


def draw_run(folder: Path) -> list[Path]:
    """Draws the routing of a fitted model into `pictures/routing.png`."""
    from smoe.views.routing import plot_routing

    fitted = GridRegressor.load(folder).fitted
    path = folder / "pictures" / "routing.png"
    mesh = fitted.mesh
    coords = grid_coordinates(fitted) if mesh is None else mesh.coordinates
    triangles = None if mesh is None else mesh.triangles
    plot_routing(fitted.net, path, coords=coords, triangles=triangles, title=fitted.describe())
    return [path]
