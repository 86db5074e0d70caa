"""Colours that show which pixels share experts."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from smoe.diagnostics import similarity_components
from smoe.diagnostics.choices import Choices


def similarity_colours(
    routing: Choices, num_experts: int, pixel_weights: np.ndarray | Tensor | None = None
) -> np.ndarray:
    """Returns colours such that pixels which share many experts look alike: three principal components as RGB.

    Args:
        routing: Experts chosen at each pixel, `(E, ...)`.
        num_experts: Number of experts in the bank, X.
        pixel_weights: Weight of each pixel, such as its area; must broadcast to the grid.

    Returns:
        Colours from 0 to 1, `(..., 3)`. Grey where all pixels have the same experts.
    """
    components = similarity_components(routing, num_experts, 3, pixel_weights)
    # 2.2 standard deviations of the first component span the colours.
    return np.clip(0.5 + 0.5 / 2.2 * np.moveaxis(components, 0, -1), 0.0, 1.0)
