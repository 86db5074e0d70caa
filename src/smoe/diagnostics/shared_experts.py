"""Which pixels share experts: with their neighbours, and with all others."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from smoe.diagnostics.choices import Choices, as_choices, as_pixel_weights
from smoe.diagnostics.expert_use import selections


def neighbour_agreement(routing: Choices, num_experts: int) -> np.ndarray:
    """Returns the share of each pixel's experts that also serve a neighbour, averaged over its neighbours.

    Neighbours are one step apart along one axis of the grid: two on a line, four on a map, six in a volume, fewer at
    the edges. White noise is near E / X everywhere; regions have borders. 0 for a grid of one pixel.

    Args:
        routing: Experts chosen at each pixel of a grid, `(E, ...)`.
        num_experts: Number of experts in the bank, X.
    """
    is_selected = selections(routing, num_experts)
    num_selected = as_choices(routing, num_experts).shape[0]
    sums = np.zeros(is_selected.shape[1:])
    counts = np.zeros_like(sums)
    for axis in range(sums.ndim):
        before = (slice(None),) * axis + (slice(None, -1),)
        after = (slice(None),) * axis + (slice(1, None),)
        shared = (is_selected[(slice(None), *before)] & is_selected[(slice(None), *after)]).sum(axis=0) / num_selected
        for side in (before, after):
            sums[side] += shared
            counts[side] += 1
    return sums / np.maximum(counts, 1)


def similarity_components(
    routing: Choices, num_experts: int, num_components: int = 3, pixel_weights: np.ndarray | Tensor | None = None
) -> np.ndarray:
    """Returns the first principal components of the pixels' sets of experts: pixels that share many experts are close.

    Args:
        routing: Experts chosen at each pixel, `(E, ...)`.
        num_experts: Number of experts in the bank, X.
        num_components: Number of components.
        pixel_weights: How much each pixel counts, such as its area; must broadcast to the grid.

    Returns:
        Components in units of the standard deviation of the first, `(num_components, ...)`; 0 where all pixels have
        the same experts. The sign of a component is such that its largest coefficient is positive.
    """
    choices = as_choices(routing, num_experts)
    weights = as_pixel_weights(pixel_weights, choices.shape[1:]).ravel()
    pixels = selections(choices, num_experts).reshape(num_experts, -1).T.astype(np.float64)
    centred = pixels - weights @ pixels
    variances, directions = np.linalg.eigh((centred * weights[:, None]).T @ centred)
    components = np.zeros((num_components, len(pixels)))
    num_found = min(num_components, num_experts)
    # The largest variances come last.
    leading = directions[:, ::-1][:, :num_found]
    leading = leading * np.sign(leading[np.abs(leading).argmax(0), np.arange(num_found)])
    components[:num_found] = ((centred @ leading) * (variances[::-1][:num_found] > 1e-12)).T
    # One scale for all: a component of little variance must not look like a strong one.
    deviation = np.sqrt(components[0] ** 2 @ weights) or 1.0
    return (components / deviation).reshape(num_components, *choices.shape[1:])
