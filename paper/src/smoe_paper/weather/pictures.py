"""Pictures of one weather run: scores by epoch, forecasts beside the truth, and the routing on the globe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from smoe.errors import DataError
from smoe.nn import RoutedLayer, SpatialGate
from smoe.training.distribution import make_accelerator
from smoe_paper.atmosphere.variables import VARIABLES, parse_channel
from smoe_paper.experiments.open_run import OpenRun
from smoe_paper.metrics import LatitudeWeightedRMSE
from smoe_paper.weather.data.samples import WeatherSamples
from smoe_paper.weather.data.truth import Truth
from smoe_paper.weather.evaluate import samples_of

_PALETTES = {"z": "viridis", "t": "magma", "t2m": "magma", "tp": "YlGnBu"}


def draw_run(run: OpenRun, split: str, init_times: Sequence[np.datetime64] = (), layers: str = "") -> list[Path]:
    """Writes the pictures into the run's folder and returns their paths.

    Args:
        run: Run, opened with the split.
        split: Split whose forecasts are drawn.
        init_times: Initial times of the forecasts to draw; if empty, one from the middle of the split.
        layers: Draw only the routing of layers with this text in their name; all of them if empty.

    Raises:
        DataError: If the split has no forecast from one of the times, or no layer has such a name.
    """
    samples, lead_hours = samples_of(run, split)
    numbers = find_samples(samples, init_times)
    routed = _find_layers(run, layers)
    pictures = _draw_curves(run, samples.targets)
    device = make_accelerator(run.recipe.training).device
    model = run.task.model.to(device).eval()
    for number in numbers:
        input = samples[number][0][None].to(device)
        pictures.append(_draw_forecast(run, model, samples, number, lead_hours, input))
    first_input = samples[numbers[0]][0][None].to(device)
    return pictures + _draw_routing(run, model, samples, first_input, routed)


def find_samples(samples: WeatherSamples, init_times: Sequence[np.datetime64]) -> list[int]:
    """Returns the indices of the samples that start at given times, or that of the middle one without times.

    Raises:
        DataError: If there is no such sample; the message contains the nearest time.
    """
    if not init_times:
        return [len(samples) // 2]
    starts = np.array([samples.init_time(number) for number in range(len(samples))])
    numbers = []
    for time in init_times:
        nearest = int(np.abs(starts - time).argmin())
        if starts[nearest] != time:
            raise DataError(f"no forecast starts at {time}; the nearest starts at {starts[nearest]}")
        numbers.append(nearest)
    return numbers


def _draw_curves(run: OpenRun, targets: Sequence[str]) -> list[Path]:
    from smoe.views import draw_scores

    keys = {f"validation/rmse_{name}": f"{_label(name)} RMSE on validation, in {_units(name)}" for name in targets}
    history = run.directory.read_history()
    known = {key: title for key, title in keys.items() if any(record.get(key) is not None for record in history)}
    if not known:
        return []
    path = run.directory.pictures / "scores.png"
    draw_scores(history, known, path)
    return [path]


def _draw_forecast(
    run: OpenRun, model: nn.Module, samples: WeatherSamples, number: int, lead_hours: int, input: Tensor
) -> Path:
    from smoe_paper.weather.views import ForecastMap, draw_forecast

    store, init_time, valid_time = samples.store, samples.init_time(number), samples.valid_time(number)
    truth = Truth(store, samples.targets).read(np.array([valid_time]))[0]
    with torch.no_grad():
        normalised = model(input)[0].double().cpu().numpy()
    maps = []
    for channel, name in enumerate(samples.targets):
        forecast = store.to_physical(name, normalised[channel])
        metric = LatitudeWeightedRMSE([name], store.grid.latitude, [1.0])
        pair = (torch.from_numpy(fields)[None, None] for fields in (forecast, truth[channel]))
        rmse = metric.values(metric.totals(*pair))[metric.names[0]]
        palette = _PALETTES.get(parse_channel(name).variable, "viridis")
        maps.append(ForecastMap(_label(name), _units(name), forecast, truth[channel], rmse, palette))
    path = run.directory.pictures / f"forecast-{str(init_time).replace(':', '')}-{lead_hours}h.png"
    draw_forecast(
        maps,
        store.grid.latitude,
        store.grid.longitude,
        path,
        title=f"{run.name}: {lead_hours} h forecast from {_clock(init_time)} for {_clock(valid_time)}",
    )
    return path


def _find_layers(run: OpenRun, pattern: str) -> dict[str, RoutedLayer]:
    layers = {name: module for name, module in run.task.model.named_modules() if isinstance(module, RoutedLayer)}
    chosen = {name: layer for name, layer in layers.items() if pattern in name}
    if pattern and not chosen:
        known = ", ".join(layers) or "none: it is not an SMoE"
        raise DataError(f"no SMoE layer of {run.directory.path} has {pattern!r} in its name; there are {known}")
    return chosen


def _draw_routing(
    run: OpenRun, model: nn.Module, samples: WeatherSamples, input: Tensor, layers: dict[str, RoutedLayer]
) -> list[Path]:
    from smoe.views import draw_globe_routing

    store, pictures = samples.store, []
    land = store.raw_constant("lsm") if "lsm" in store.constant_names else np.zeros(store.grid.shape)
    inputs = layer_inputs(model, layers, input)
    by_gate: dict[SpatialGate, list[str]] = {}
    for name, layer in layers.items():
        by_gate.setdefault(layer.gate, []).append(name)
    for number, (gate, names) in enumerate(by_gate.items()):
        layer = layers[names[0]]
        with torch.no_grad():
            indices, weights = layer.routing(inputs.get(names[0]))
        if indices.ndim == 4:
            indices, weights = indices[0], weights[0]
        if tuple(indices.shape[1:]) != store.grid.shape:
            # A gate on a coarser grid inside the network cannot be drawn on the store's map.
            continue
        favourite = indices.gather(0, weights.argmax(0, keepdim=True))[0]
        path = run.directory.pictures / ("routing.png" if len(by_gate) == 1 else f"routing-{number + 1:02d}.png")
        served = names[0] if len(names) == 1 else f"{len(names)} layers, {names[0]} to {names[-1]}"
        draw_globe_routing(
            indices.cpu().numpy(),
            favourite.cpu().numpy(),
            gate.num_experts,
            np.asarray(land, np.float64),
            store.grid.latitude,
            store.grid.longitude,
            path,
            title=f"{run.name}: {gate.num_selected} of {gate.num_experts} experts at each pixel; gate of {served}",
        )
        pictures.append(path)
    return pictures


def layer_inputs(model: nn.Module, layers: dict[str, RoutedLayer], input: Tensor) -> dict[str, Tensor]:
    """Returns the inputs of the layers whose gates depend on the input, for a network input."""
    looking = {name: layer for name, layer in layers.items() if layer.gate.looks_at_input}
    found: dict[str, Tensor] = {}
    if not looking:
        return found

    def keep_as(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def keep(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            found[name] = arguments[0]

        return keep

    hooks = [layer.register_forward_pre_hook(keep_as(name)) for name, layer in looking.items()]
    try:
        with torch.no_grad():
            model(input)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _label(channel: str) -> str:
    return channel.replace("_", "").upper()


def _units(channel: str) -> str:
    units = VARIABLES[parse_channel(channel).variable].units
    return units.replace("-2", "⁻²").replace("-1", "⁻¹").replace("m2", "m²")


def _clock(time: np.datetime64) -> str:
    return str(time.astype("datetime64[m]")).replace("T", " ")
