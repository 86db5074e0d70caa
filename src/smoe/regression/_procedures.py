"""What is done with regressors: predictions of predictions, cross-validation, files of predictions, pictures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from smoe._files import temporary_folder
from smoe.errors import DataError, OptionError
from smoe.gridded import (
    WRITING,
    OpenOptions,
    Pairs,
    Period,
    TimeLabels,
    import_xarray,
    parse_lead,
    with_provenance,
    write_cf,
    write_cf_by_year,
)
from smoe.regression._fitted import grid_coordinates, open_inputs
from smoe.regression._model_files import load_model
from smoe.regression._prediction import join_blocks, sample_coordinates
from smoe.regression._preparation import open_sources, pair_sources
from smoe.regression._scores import ErrorSums, ScoreTable, make_table

if TYPE_CHECKING:
    import xarray as xr


def rollout(model: Any, x: Any, steps: int) -> xr.Dataset:
    """As `GridRegressor.rollout` says."""
    xr = import_xarray()
    fitted = model.fitted
    if steps < 1:
        raise OptionError(f"steps must be at least 1, got {steps}")
    missing = set(fitted.dynamic_variables) - {channel.variable for channel in fitted.target_channels}
    lead = parse_lead(fitted.options.lead)
    if missing or not (lead.seconds or lead.months):
        what = f"it does not predict {', '.join(sorted(missing))}" if missing else "it has no lead"
        raise DataError(f"the model cannot go on from its own predictions: {what}")
    source = open_inputs(fitted, x)
    if source.labels is None or source.lead_times is not None or fitted.options.objective in ("gaussian", "quantiles"):
        raise DataError("predictions of predictions need states with a time, and a model of single values")
    starts = source.labels.coordinate(source.labels.seconds)
    state, found = x, []
    for _ in range(steps):
        state = model.predict(state)
        state = state.to_dataset() if isinstance(state, xr.DataArray) else state
        time = fitted.layout.time[0]
        valid = ((time,), state[time].values, {"standard_name": "time"})
        found.append(state.assign_coords({time: starts, "valid_time": valid}))
    names = [variable for variable, *_ in fitted.layout.variables]
    whole = xr.concat(
        found, dim="lead_time", data_vars=names, coords=["valid_time"], compat="override", join="override"
    )  # fmt: skip
    # Months of 30 days.
    hours = (lead.seconds / 3600.0 + 720.0 * lead.months) * np.arange(1, steps + 1)
    attributes = {"standard_name": "forecast_period", "units": "hours"}
    return whole.assign_coords(lead_time=("lead_time", hours, attributes))


def predict_lazily(model: Any, x: Any) -> Any:
    """Predictions of chunks of times as dask arrays.

    Raises:
        DataError: If the inputs are not an xarray object that is chunked in the time of the targets.
    """
    xr = import_xarray()
    fitted, time = model.fitted, model.fitted.layout.time[0]
    is_chunked = isinstance(x, (xr.Dataset, xr.DataArray)) and time in x.chunksizes
    if not is_chunked:
        raise DataError(f"lazy predictions need an xarray object that is chunked along {time}: x.chunk({time}=100)")
    source = open_inputs(fitted, x)
    if source.lead_times is not None:
        raise DataError("forecasts with start and lead times cannot be predicted from lazily: leave lazy out")
    dates = sample_coordinates(fitted, source, np.arange(source.num_positions))[0][time]
    one = model.predict(x.isel({time: slice(0, 1)}))
    whole = one.isel({time: np.zeros(x.sizes[time], np.int64)}).assign_coords({time: dates})
    chunks = x.chunksizes[time]
    return xr.map_blocks(model.predict, x.chunk({dim: -1 for dim in x.dims if dim != time}),
                         template=whole.chunk({time: chunks}))  # fmt: skip


def cross_validate(model: Any, x: Any, y: Any, folds: int, **fit: Any) -> ScoreTable:
    """As `GridRegressor.cross_validate` says."""
    names = [fit.get(name) for name in ("input_variables", "target_variables", "open_options")]
    inputs, targets = open_sources(x, y, model.options, *names)
    pairs = pair_sources(inputs, targets, model.options)
    tables = []
    for period in _blocks(pairs, folds):
        one = type(model)(**model.get_params())
        one.fit(x, y, test=period, **fit)
        tables.append(one.score(x, y, period, open_options=fit.get("open_options")))
    # The name of the climatology tells its harmonics, which may differ.
    common = [name for name in tables[0].squared if all(name in each.squared for each in tables)]
    sums = {name: ErrorSums([each.squared[name] for each in tables], [each.absolute[name] for each in tables])
            for name in common}  # fmt: skip
    simple = [name for name in common if name not in ("model",) and "net" not in name]
    whole = Period(int(pairs.starts.min()), int(pairs.valid.max()) + 1, pairs.calendar)
    return make_table(
        sums, tables[0].targets, tables[0].units, None, period=f"{len(tables)} blocks of {whole}", simple=simple
    )


def _blocks(pairs: Pairs, folds: int) -> list[Period]:
    if folds < 2:
        raise OptionError(f"folds must be at least 2, got {folds}")
    times = np.unique(pairs.valid)
    edges = times[(np.arange(1, folds) * len(times)) // folds]
    years = TimeLabels(times, pairs.calendar).months(times) // 12
    firsts = times[np.flatnonzero(np.diff(years)) + 1]
    if len(firsts) >= 2 * folds:
        # The nearest beginnings of years.
        edges = firsts[np.abs(firsts[:, None] - edges).argmin(axis=0)]
    starts = [int(pairs.starts.min()), *map(int, edges)]
    stops = [*map(int, edges), int(times[-1]) + 1]
    return [Period(start, stop, pairs.calendar) for start, stop in zip(starts, stops, strict=True)]


def write_predictions(
    model: Any,
    inputs: Any,
    output: Path,
    *,
    per_year: bool = False,
    overwrite: bool = False,
    open_options: OpenOptions | None = None,
) -> list[Path]:
    """Predicts a block of times at once, so that inputs may be larger than memory, and writes what was predicted."""
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{output} cannot be written: {error.strerror or error}") from error
    with temporary_folder(WRITING, output.parent) as folder:
        whole = join_blocks(model.predict_blocks(inputs, open_options=open_options), folder)
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


def draw_run(folder: Path) -> list[Path]:
    """Draws the routing of a fitted model into `pictures/routing.png`."""
    from smoe.views._routing import plot_routing

    fitted = load_model(folder)
    path = folder / "pictures" / "routing.png"
    mesh = fitted.mesh
    coords = grid_coordinates(fitted) if mesh is None else mesh.coordinates
    triangles = None if mesh is None else mesh.triangles
    plot_routing(fitted.net, path, coords=coords, triangles=triangles, title=fitted.describe())
    return [path]
