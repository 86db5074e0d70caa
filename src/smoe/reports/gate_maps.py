"""What the gates of a model choose at each pixel, and the filters of their experts, as a report shows them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from smoe._maps import Places
from smoe.diagnostics import expert_use, layer_inputs, layers_by_gate, similarity_colours
from smoe.nn import HEALPixMoE
from smoe.nn._filter_bank import FilterBank
from smoe.nn._routed_layer import RoutedLayer

# So many experts are shown, with so many of their filters: those with the largest weights.
NUM_EXPERTS, NUM_FILTERS = 12, 6


@dataclass(frozen=True)
class ExpertFilters:
    """Filters of some experts as small pictures."""

    experts: tuple[int, ...]  # numbers of the experts, the most used one first
    labels: tuple[tuple[str, ...], ...]  # for each expert, the names of its pictures, such as `out 0, in 3`
    pictures: tuple[np.ndarray, ...]  # for each expert its pictures, `(n, rows, columns)`
    num_filters: int  # number of filters that each expert has; more than there are pictures if some are left out


def read_filters(layer: RoutedLayer, use: np.ndarray) -> ExpertFilters | None:
    """Return filters of the most used experts of a layer; None if its experts have none."""
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
    """The routing of one gate."""

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

    @property
    def num_selected(self) -> int:
        """E, the number of experts selected at each pixel."""
        return len(self.choices)

    def colours(self) -> np.ndarray:
        """Colours such that pixels which share experts look alike, `(P, 3)`, uint8."""
        on_grid = self.choices.reshape(self.num_selected, *self.places.shape)
        colours = similarity_colours(on_grid, self.num_experts, self.places.areas)
        return np.rint(255.0 * colours).astype(np.uint8).reshape(-1, 3)


def read_gates(
    model: nn.Module,
    places: Places | None,
    input: Tensor | None = None,
    *,
    shown_shape: tuple[int, ...] | None = None,
) -> tuple[GateMap, ...]:
    """Return the routing of each gate of a model, in the order of the model.

    Gates that depend on their input are shown for the first sample of `input`, and left out without one. So are gates
    of a single expert, which have nothing to choose.
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
        grid = tuple(gate.spatial_shape or layer._output_grid(inputs.get(name)))
        if isinstance(layer, HEALPixMoE) and places is not None and len(places.shape) == 1:
            # The data have pixels in the order of their file, the gate has faces.
            choices, scores = (part[:, layer.inverse.cpu().numpy()] for part in (choices, scores))
            grid = (choices.shape[1],)
        if shown_shape is not None and len(grid) == len(shown_shape) and grid != shown_shape:
            choices, scores = (_spread(part, grid, shown_shape) for part in (choices, scores))
            grid = shown_shape
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
            )
        )
    return tuple(maps)


def ranked(indices: Tensor, weights: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return experts and scores `(E, P)` with the highest score first at each pixel; equal scores keep their order."""
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
