"""Pictures of a run of weather forecasts, and parts of its report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from torch import Tensor, nn

from smoe.command_line import UsageError
from smoe.diagnostics import expert_use
from smoe.errors import DataError
from smoe.losses import latitude_weights
from smoe.nn import RoutedLayer, SpatialGate
from smoe.reports.parts import Places
from smoe.training.distribution import make_accelerator
from smoe.views import draw_expert_use, draw_globe, save_picture, similarity_colours
from smoe_paper.atmosphere.variables import VARIABLES, parse_channel
from smoe_paper.experiments.experiment import Notify, ReportParts
from smoe_paper.experiments.tables import PublishedResult
from smoe_paper.experiments.task import OpenRun
from smoe_paper.metrics import LatitudeWeightedRMSE
from smoe_paper.weather.recipes import PAPER, PUBLISHED, PUBLISHED_DATA, WeatherRecipe
from smoe_paper.weather.samples import WeatherSamples
from smoe_paper.weather.scores import channel_label, samples_of, score_baselines
from smoe_paper.weather.store import WeatherStore
from smoe_paper.weather.tables import WeatherShowOptions
from smoe_paper.weather.truth import Truth


def draw_forecast(store: WeatherStore, forecasts: np.ndarray, truths: np.ndarray, targets: Sequence[str]) -> Figure:
    """Draws a row of truth, forecast and error for each variable; forecasts and truths are `(C, H, W)`."""
    figure = Figure(figsize=(14.5, 0.7 + 2.35 * len(targets)), layout="constrained")
    for row, name in enumerate(targets):
        forecast, truth, label, units = forecasts[row], truths[row], channel_label(name), _units(name)
        if not np.isfinite(np.stack([forecast, truth])).all():
            raise ValueError(f"the map of {label} holds values that are not finite")
        error = forecast - truth
        metric = LatitudeWeightedRMSE([name], store.grid.latitude, [1.0])
        pair = (torch.from_numpy(np.asarray(fields, np.float64))[None, None] for fields in (forecast, truth))
        rmse = metric.values(metric.totals(*pair))[metric.names[0]]
        digits = f"{rmse:.0f}" if rmse >= 100 else f"{rmse:.3g}"
        # The range of the truth: one wrong pixel of a forecast must not make all others look alike.
        values = Normalize(truth.min(), truth.max())
        # Symmetric, so that white is no error; a single outlier does not fade all others.
        largest = float(np.quantile(np.abs(error), 0.995)) or 1.0
        symmetric, palette = Normalize(-largest, largest), _PALETTES.get(parse_channel(name).variable, "viridis")
        panels = (
            (f"{label}, truth", truth, palette, values),
            (f"{label}, forecast", forecast, palette, values),
            (f"forecast - truth, RMSE {digits} {units}", error, "RdBu_r", symmetric),
        )
        for column, (caption, field, colours, norm) in enumerate(panels):
            axes = figure.add_subplot(len(targets), 3, 3 * row + column + 1)
            mesh = draw_globe(axes, store.grid.latitude, store.grid.longitude, field, palette=colours, norm=norm)
            axes.set_title(caption, fontsize=11, pad=6)
            if column != 1:
                location = "left" if column == 0 else "right"
                extend = _extend(forecast, values) if column == 0 else _extend(error, symmetric)
                bar = figure.colorbar(mesh, ax=axes, location=location, shrink=0.9, aspect=18, extend=extend)
                bar.set_label(units)
                bar.outline.set_visible(False)
    return figure


def _extend(field: np.ndarray, norm: Normalize) -> str:
    """Returns the ends of a colour bar that are pointed, because there are values beyond."""
    is_below, is_above = bool(np.any(norm(field) < 0)), bool(np.any(norm(field) > 1))
    if is_below and is_above:
        return "both"
    return "min" if is_below else "max" if is_above else "neither"


_PALETTES = {"z": "viridis", "t": "magma", "t2m": "magma", "tp": "YlGnBu"}


def draw_run(run: OpenRun, options: WeatherShowOptions) -> list[Path]:
    """Draws scores by epoch, forecasts and the routing into the run's folder; returns the paths."""
    try:
        times = [np.datetime64(text, "h") for text in options.init_times]
    except ValueError as error:
        raise UsageError(f"--init-times: {error}; write a time as 2018-01-15T00") from None
    samples = samples_of(run, options.split)
    numbers = find_samples(samples, times)
    routed = _find_layers(run, options.layers)
    pictures = _draw_curves(run, samples.targets)
    device = make_accelerator(run.recipe.training).device
    model = run.task.model.to(device).eval()
    for number in numbers:
        input = samples[number][0][None].to(device)
        pictures.append(_draw_forecast(run, model, samples, number, input))
    return pictures + _draw_routing(run, samples, routed)


def find_samples(samples: WeatherSamples, init_times: Sequence[np.datetime64]) -> list[int]:
    """Returns the indices of the samples that start at given times, or that of the middle one without times."""
    if not init_times:
        return [len(samples) // 2]
    starts, numbers = samples.init_times, []
    for time in init_times:
        nearest = int(np.abs(starts - time).argmin())
        if starts[nearest] != time:
            raise DataError(f"no forecast starts at {time}; the nearest starts at {starts[nearest]}")
        numbers.append(nearest)
    return numbers


def _draw_curves(run: OpenRun, targets: Sequence[str]) -> list[Path]:
    from smoe_paper.charts import draw_scores

    keys = {
        f"validation/rmse_{name}": f"{channel_label(name)} RMSE on validation, in {_units(name)}" for name in targets
    }
    history = run.directory.read_history()
    known = {key: title for key, title in keys.items() if any(record.get(key) is not None for record in history)}
    if not known:
        return []
    path = run.directory.pictures / "scores.png"
    draw_scores(history, known, path)
    return [path]


def _draw_forecast(run: OpenRun, model: nn.Module, samples: WeatherSamples, number: int, input: Tensor) -> Path:
    store, lead_hours, init_time = samples.store, samples.lead_hours, samples.init_times[number]
    valid_time = init_time + np.timedelta64(lead_hours, "h")
    truth = Truth(store, samples.targets).read(np.array([valid_time]))[0]
    with torch.no_grad():
        normalised = model(input)[0].double().cpu().numpy()
    forecast = np.stack(
        [store.to_physical(name, field) for name, field in zip(samples.targets, normalised, strict=True)]
    )
    figure = draw_forecast(store, forecast, truth, samples.targets)
    title = f"{run.name}: {lead_hours} h forecast from {_clock(init_time)} for {_clock(valid_time)}"
    figure.suptitle(title, fontsize=14, fontweight="bold")
    path = run.directory.pictures / f"forecast-{str(init_time).replace(':', '')}-{lead_hours}h.png"
    save_picture(figure, path)
    return path


def _find_layers(run: OpenRun, pattern: str) -> dict[str, RoutedLayer]:
    layers = {name: module for name, module in run.task.model.named_modules() if isinstance(module, RoutedLayer)}
    chosen = {name: layer for name, layer in layers.items() if pattern in name}
    if pattern and not chosen:
        known = ", ".join(layers) or "none: it is not an SMoE"
        raise DataError(f"no SMoE layer of {run.directory.path} has {pattern!r} in its name; there are {known}")
    return chosen


def _draw_routing(run: OpenRun, samples: WeatherSamples, layers: dict[str, RoutedLayer]) -> list[Path]:
    store, pictures = samples.store, []
    area = latitude_weights(store.grid.latitude)[:, None]
    by_gate: dict[SpatialGate, list[str]] = {}
    for name, layer in layers.items():
        by_gate.setdefault(layer.gate, []).append(name)
    for number, (gate, names) in enumerate(by_gate.items()):
        layer = layers[names[0]]
        with torch.no_grad():
            indices = layer.routing().indices.cpu().numpy()
        if tuple(indices.shape[1:]) != store.grid.shape:
            # A gate on a coarser grid inside the network cannot be drawn on the store's map.
            continue
        path = run.directory.pictures / ("routing.png" if len(by_gate) == 1 else f"routing-{number + 1:02d}.png")
        served = names[0] if len(names) == 1 else f"{len(names)} layers, {names[0]} to {names[-1]}"
        figure = Figure(figsize=(13.5, 4.0), layout="constrained")
        figure.suptitle(
            f"{run.name}: {gate.num_selected} of {gate.num_experts} experts at each pixel; gate of {served}"
        )
        globe, use = figure.subplots(1, 2, width_ratios=(2.0, 1.0))
        colours = similarity_colours(indices, gate.num_experts, area)
        draw_globe(globe, store.grid.latitude, store.grid.longitude, colours)
        globe.set_title("like colours share experts", fontsize=11)
        draw_expert_use(use, expert_use(indices, gate.num_experts, area), of="globe")
        save_picture(figure, path)
        pictures.append(path)
    return pictures


def _units(channel: str) -> str:
    units = VARIABLES[parse_channel(channel).variable].units
    return units.replace("-2", "⁻²").replace("-1", "⁻¹").replace("m2", "m²")


def _clock(time: np.datetime64) -> str:
    return str(time.astype("datetime64[m]")).replace("T", " ")


def report_parts(run: OpenRun, split: str | None, notify: Notify) -> ReportParts:
    """Returns the globe of the store, persistence and climatologies on the split, and what is published."""
    assert isinstance(run.recipe, WeatherRecipe)
    data = run.recipe.data
    assert data.store is not None
    store = WeatherStore.open(data.store)
    parts = ReportParts(
        places=Places.globe(store.grid.latitude, store.grid.longitude),
        targets=tuple((channel_label(name), VARIABLES[parse_channel(name).variable].units) for name in data.targets),
        data={"store": store.path.name, "checksum of the store": store.checksum},
    )
    if split is None:
        return parts
    samples = samples_of(run, split)
    lead_hours = samples.lead_hours
    notify(f"{run.name}: scoring persistence and climatologies")
    first, last = samples.years
    return ReportParts(
        places=parts.places,
        targets=parts.targets,
        data=parts.data,
        baselines=score_baselines(samples, data.train_years),
        published=_published(lead_hours, run.name),
        remarks=(
            f"{len(samples):,} forecasts of {lead_hours} h in {first} to {last}. Published rows are of "
            f"{PUBLISHED_DATA}: they can be compared with this run only if the store holds the same years of ERA5. A "
            "simulated atmosphere is another task, to be judged by its own persistence and climatology.",
        ),
    )


def _published(lead_hours: int, own: str) -> dict[str, tuple[PublishedResult, ...]]:
    """Published rows by recipe or model; that of the run's recipe by the run's own name."""
    return {
        own if row.recipe == own.removesuffix("-rasp") else row.recipe or row.model: tuple(
            PublishedResult(f"rmse_{channel}", value, row.spread.get((channel, lead), 0.0), None, source)
            for (channel, lead), value in row.rmse.items()
            if lead == lead_hours
        )
        for row in PUBLISHED
        for source in (f"Table 3, {lead_hours} h" if row.source == PAPER else row.source,)
    }
