"""What the gates of a model choose at each pixel, and the filters of their experts, as a report shows them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from smoe._maps import Places
from smoe.diagnostics import expert_use, layer_inputs, layers_by_gate
from smoe.diagnostics._choices import as_choices, as_pixel_weights, colour_map, selections
from smoe.errors import DataError
from smoe.nn import FactorisedGate, HEALPixMoE
from smoe.nn._filter_bank import FilterBank
from smoe.nn._routed_layer import RoutedLayer

# So many experts are shown, with so many of their filters: those with the largest weights.
NUM_EXPERTS, NUM_FILTERS = 12, 6


@dataclass(frozen=True)
class ExpertFilters:
    experts: tuple[int, ...]  # numbers of the experts, the most used one first
    labels: tuple[tuple[str, ...], ...]  # for each expert, the names of its pictures, such as `out 0, in 3`
    pictures: tuple[np.ndarray, ...]  # for each expert its pictures, `(n, rows, columns)`
    num_filters: int  # number of filters that each expert has; more than there are pictures if some are left out


def read_filters(layer: RoutedLayer, use: np.ndarray) -> ExpertFilters | None:
    """Returns filters of the most used experts of a layer; None if its experts have none."""
    if not isinstance(layer, FilterBank):
        return None
    weight = layer.weight.detach().float().cpu().numpy()
    num_outputs, channels, kernel = layer._expert_channels, weight.shape[1], weight.shape[2:]
    banks = weight.reshape(layer.gate.num_experts, num_outputs, channels, *kernel)
    in_use = [int(expert) for expert in np.argsort(-use, kind="stable")[:NUM_EXPERTS] if use[expert] > 0]
    if not kernel:
        # A linear map of features: one row for each output.
        labels = tuple(tuple(f"output {output}" for output in range(min(num_outputs, NUM_FILTERS))) for _ in in_use)
        rows = tuple(banks[expert][:NUM_FILTERS, None, :] for expert in in_use)
        return ExpertFilters(tuple(in_use), labels, rows, num_outputs)
    labels_of, pictures_of = [], []
    for expert in in_use:
        filters = banks[expert].reshape(num_outputs * channels, *kernel)
        sizes = np.square(filters).reshape(len(filters), -1).sum(axis=1)
        largest = np.sort(np.argsort(-sizes, kind="stable")[:NUM_FILTERS])
        labels_of.append(tuple(_label(number, num_outputs, channels) for number in largest.tolist()))
        pictures_of.append(np.stack([as_picture(filters[number]) for number in largest]))
    return ExpertFilters(tuple(in_use), tuple(labels_of), tuple(pictures_of), num_outputs * channels)


def as_picture(values: np.ndarray) -> np.ndarray:
    """A filter of one to three dimensions as rows and columns; the slices of a volume are side by side."""
    if values.ndim == 1:
        return values[None]
    if values.ndim == 2:
        return values
    return np.concatenate(list(values), axis=1)


def _label(number: int, num_outputs: int, channels: int) -> str:
    output, channel = divmod(number, channels)
    parts = [f"out {output}"] if num_outputs > 1 else []
    return ", ".join([*parts, f"in {channel}"]) if channels > 1 or parts else ""


@dataclass(frozen=True)
class GateMap:
    layers: tuple[str, ...]  # names of the layers that share the gate
    kind: str  # class of the gate
    rule: str  # rule by which it learns
    num_experts: int  # X, the number of experts in the bank
    places: Places  # where the pixels of the gate lie
    choices: np.ndarray  # selected experts, `(E, P)`, those with the highest scores first
    scores: np.ndarray  # their scores, `(E, P)`, float32
    use: np.ndarray  # share of the area that each expert serves, `(X,)`; the sum is E
    filters: ExpertFilters | None  # filters of the most used experts of the first layer
    is_of_sample: bool  # whether the gate depends on its input, so that the choices are those for one sample

    film: Mapping[str, np.ndarray] = field(default_factory=dict)  # choices `(E, P)` before, such as at `epoch 3`
    embedding: np.ndarray | None = None  # what the gate knows of each pixel as colours, `(P, 3)`, uint8

    @property
    def num_selected(self) -> int:
        return len(self.choices)

    def colour_map(self) -> tuple[np.ndarray, np.ndarray]:
        """A colour, and what each expert adds to it, such that pixels which share experts look alike, in [0, 255]."""
        weights = as_pixel_weights(self.places.areas, self.places.shape)
        base, directions = colour_map(selections(self.choices, self.num_experts).T, weights)
        return 255.0 * base, 255.0 * directions


Film = Mapping[int, Mapping[str, Tensor]]


def read_gates(
    model: nn.Module,
    places: Places | None,
    input: Tensor | None = None,
    *,
    shown_shape: tuple[int, ...] | None = None,
    film: Film | None = None,
) -> tuple[GateMap, ...]:
    """Returns the routing of each gate of a model, in the order of the model.

    Gates that depend on their input are shown for the first sample of `input`, and left out without one. So are gates
    of a single expert, which have nothing to choose. `film` holds choices of the gates by epoch.
    """
    inputs = {} if input is None else layer_inputs(model, input)
    maps: list[GateMap] = []
    for gate, layers in layers_by_gate(model).items():
        name, layer = next(iter(layers.items()))
        if gate.num_experts < 2 or (gate.looks_at_input and name not in inputs):
            continue
        with torch.no_grad():
            # In the order of the gate.
            routing = gate(inputs.get(name))
            choices, scores = ranked(routing.indices[0].cpu(), routing.weights[0].cpu())
        grid_of_gate = tuple(gate.spatial_shape or layer._output_grid(inputs.get(name)))
        show, grid = _to_data(layer, grid_of_gate, places, shown_shape)
        choices, scores = show(choices), show(scores)
        frames = {epoch: each[name] for epoch, each in (film or {}).items() if name in each}
        embedding = None
        if isinstance(gate, FactorisedGate):
            features = show(gate.embedding.values.detach().float().cpu().flatten(1).numpy()).T
            base, directions = colour_map(features, np.full(len(features), 1 / len(features)))
            embedding = np.rint(255 * np.clip(base + features @ directions, 0, 1)).astype(np.uint8)
        found = None if places is None else places.on_grid(grid)
        where = found if found is not None else Places("grid", grid)
        use = expert_use(choices.reshape(len(choices), *grid), gate.num_experts, where.areas)
        maps.append(
            GateMap(
                layers=tuple(layer_name or "the model itself" for layer_name in layers),
                kind=type(gate).__name__,
                rule=str(layer.rule),
                num_experts=gate.num_experts,
                places=where,
                choices=choices,
                scores=scores,
                use=use,
                filters=read_filters(layer, use),
                is_of_sample=gate.looks_at_input,
                film={
                    f"epoch {epoch}" if epoch else "start": show(_frame(frame, layer, grid_of_gate))
                    for epoch, frame in frames.items()
                },
                embedding=embedding,
            )
        )
    return tuple(maps)


def _to_data(
    layer: RoutedLayer, grid: tuple[int, ...], places: Places | None, shown: tuple[int, ...] | None
) -> tuple[Callable[[np.ndarray], np.ndarray], tuple[int, ...]]:
    """What brings values `(n, P)` of the grid of a gate to that of the data, and this grid."""
    if isinstance(layer, HEALPixMoE) and places is not None and len(places.shape) == 1:
        # The data have pixels in the order of their file, the gate has faces.
        order = layer.inverse.cpu().numpy()
        return lambda values: values[:, order], (len(order),)
    if shown is not None and len(grid) == len(shown) and grid != shown:
        return lambda values: _spread(values, grid, shown), shown
    return lambda values: values, grid


def _frame(choices: Tensor, layer: RoutedLayer, grid: tuple[int, ...]) -> np.ndarray:
    """Choices of a film `(E, P)` at all pixels of a gate, of which it may hold a part of the rows and columns."""
    values, num_selected = as_choices(choices, layer.gate.num_experts), layer.gate.num_selected
    # A film has pixels in the order of a layer's output; on a HEALPix sphere, that of a gate is by faces.
    order = layer.inverse.cpu().numpy() if isinstance(layer, HEALPixMoE) else None
    sizes = grid if order is None else (len(order),)
    if len(values) != num_selected or values.ndim != 1 + len(sizes):
        raise DataError(f"the film has choices of {values.shape} for a gate of {num_selected} experts on {sizes}")
    for axis, size in enumerate(sizes, start=1):
        values = values.take(np.arange(size) * values.shape[axis] // size, axis=axis)
    values = values.reshape(num_selected, -1)
    return values if order is None else values[:, np.argsort(order)]


def ranked(indices: Tensor, weights: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Returns experts and scores `(E, P)` with the highest score first at each pixel; equal scores keep their order."""
    order = weights.float().argsort(dim=0, descending=True, stable=True)
    choices = indices.long().gather(0, order).to(torch.int32)
    return choices.numpy(), weights.float().gather(0, order).numpy()


def _spread(values: np.ndarray, grid: tuple[int, ...], shown: tuple[int, ...]) -> np.ndarray:
    """Values `(E, P)` of a padded grid, which may be halved several times, on the grid of the data."""
    fields = values.reshape(-1, *grid)
    for axis, (size, wanted) in enumerate(zip(grid, shown, strict=True), start=1):
        repeats = 1 << max(0, math.ceil(math.log2(wanted / size)))
        fields = fields.repeat(repeats, axis=axis).take(range(wanted), axis=axis)
    return np.ascontiguousarray(fields).reshape(len(values), -1)
