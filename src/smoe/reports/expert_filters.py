"""Filters of the experts that serve most pixels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from smoe.nn.filter_bank import FilterBank
from smoe.nn.routed_layer import RoutedLayer

# So many experts are shown, with so many of their filters: those with the largest weights.
NUM_EXPERTS, NUM_FILTERS = 12, 6


@dataclass(frozen=True)
class ExpertFilters:
    """Filters of some experts as small pictures.

    Attributes:
        experts: Numbers of the experts, the most used one first.
        labels: For each expert, the names of its pictures, such as `out 0, in 3`.
        pictures: For each expert its pictures, `(n, rows, columns)`.
        num_filters: Number of filters that each expert has; more than there are pictures if some are left out.
    """

    experts: tuple[int, ...]
    labels: tuple[tuple[str, ...], ...]
    pictures: tuple[np.ndarray, ...]
    num_filters: int


def read_filters(layer: RoutedLayer, use: np.ndarray) -> ExpertFilters | None:
    """Returns filters of the most used experts of a layer; None if its experts have none.

    Args:
        layer: SMoE layer.
        use: Share of the pixels that each expert serves, `(X,)`.
    """
    if not isinstance(layer, FilterBank):
        return None
    weight = layer.weight.detach().float().cpu().numpy()
    num_outputs, channels, kernel = layer.expert_channels, weight.shape[1], weight.shape[2:]
    banks = weight.reshape(layer.num_experts, num_outputs, channels, *kernel)
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
