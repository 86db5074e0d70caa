"""Files of a fit beside its model: scores, pictures, predictions of any size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from smoe._files import temporary_folder, write_atomically
from smoe.diagnostics import fixed_choices
from smoe.errors import DataError
from smoe.gridded._output import WRITING, with_provenance, write_cf, write_cf_by_year
from smoe.regression.fitted import Fitted
from smoe.regression.grid_regressor import GridRegressor
from smoe.regression.joined_blocks import join_blocks
from smoe.regression.scores import ScoreTable

SCORES = "scores.json"


def write_scores(folder: Path, which: str, table: ScoreTable) -> None:
    """Writes `scores.json` and the same as text, `scores.txt`."""
    text = json.dumps({"period": which, **table.to_plain()}, indent=1, allow_nan=False) + "\n"
    write_atomically(folder / SCORES, lambda file: file.write(text.encode()))
    write_atomically(folder / "scores.txt", lambda file: file.write(f"{which}\n{table}\n".encode()))


def write_predictions(
    model: GridRegressor, inputs: Any, output: Path, *, per_year: bool = False, overwrite: bool = False
) -> list[Path]:
    """Predicts a block of times at once, so that inputs may be larger than memory, and writes what was predicted.

    Returns:
        The files, one or one for each year.
    """
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{output} cannot be written: {error.strerror or error}") from error
    with temporary_folder(WRITING, output.parent) as folder:
        whole = join_blocks(model.predict_blocks(inputs), folder)
        whole = with_provenance(whole, f"predicted by smoe predict ({model.fitted.describe()})")
        if per_year:
            return write_cf_by_year(whole, output, _time_of(whole), overwrite=overwrite)
        write_cf(whole, output, overwrite=overwrite)
        return [output]


def _time_of(dataset: Any) -> str:
    for name in ("valid_time", *map(str, dataset.coords)):
        if name in dataset.coords and dataset[name].ndim == 1 and dataset[name].dtype.kind in "MO":
            return name
    raise DataError("the predictions have no times, so they cannot be written by years: leave --per-year out")


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
    from smoe.views._routing import plot_routing

    fitted = GridRegressor.load(folder).fitted
    path = folder / "pictures" / "routing.png"
    mesh = fitted.mesh
    coords = grid_coordinates(fitted) if mesh is None else mesh.coordinates
    triangles = None if mesh is None else mesh.triangles
    plot_routing(fitted.net, path, coords=coords, triangles=triangles, title=fitted.describe())
    return [path]
