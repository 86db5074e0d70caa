"""The experts chosen at each pixel, as all diagnostics take them: `(E, ...)`, the pixels on a grid of any shape."""

from __future__ import annotations

import numpy as np
from torch import Tensor

Choices = np.ndarray | Tensor
"""Experts chosen at each pixel, integers `(E, ...)`: a line `(E, L)`, a map `(E, H, W)`, nodes of a mesh `(E, P)`."""


def as_choices(routing: Choices, num_experts: int) -> np.ndarray:
    """Returns a routing as an array, after checking it.

    Args:
        routing: Experts chosen at each pixel, `(E, ...)`.
        num_experts: Number of experts in the bank, X.

    Raises:
        ValueError: If the routing does not hold integers from 0 to X - 1 in at least two dimensions.
    """
    array = as_array(routing)
    if array.ndim < 2 or array.size == 0 or array.dtype.kind not in "iu":
        raise ValueError(f"a routing must hold integers of shape (E, ...), got {array.dtype} of shape {array.shape}")
    if array.min() < 0 or array.max() >= num_experts:
        raise ValueError(f"a routing must be in [0, {num_experts - 1}], got [{array.min()}, {array.max()}]")
    return array


def as_regions(regions: Choices, pixels: tuple[int, ...]) -> np.ndarray:
    """Returns the region of each pixel as an array, after checking it.

    Args:
        regions: Number of the region of each pixel, from 0.
        pixels: Shape of the grid.

    Raises:
        ValueError: If the regions are not integers from 0, or of another grid.
    """
    array = as_array(regions)
    if array.dtype.kind not in "iu":
        raise ValueError(f"regions must be integers, got {array.dtype}")
    if array.shape != pixels:
        raise ValueError(f"regions have the shape {array.shape}, but the routing's pixels {pixels}")
    if array.min() < 0:
        raise ValueError(f"regions must be 0, 1, ..., got {array.min()}")
    return array


def as_pixel_weights(pixel_weights: np.ndarray | Tensor | None, pixels: tuple[int, ...]) -> np.ndarray:
    """Returns how much each pixel counts, of sum 1, float64, in the shape of the grid.

    Args:
        pixel_weights: Weights, such as areas, that broadcast to the grid; all pixels count alike if None.
        pixels: Shape of the grid.

    Raises:
        ValueError: If the weights do not broadcast to the grid, are negative or add up to zero.
    """
    weights = np.ones(1) if pixel_weights is None else as_array(pixel_weights).astype(np.float64)
    try:
        weights = np.broadcast_to(weights, pixels)
    except ValueError:
        raise ValueError(f"pixel_weights of shape {weights.shape} do not fit pixels of shape {pixels}") from None
    total = weights.sum()
    if not (weights.min() >= 0 and 0 < total < np.inf):
        raise ValueError(
            f"pixel_weights must not be negative and must have a finite sum above 0, got a sum of {total:g}"
        )
    return weights / total


def as_array(values: np.ndarray | Tensor) -> np.ndarray:
    """Returns an array of the values of an array or tensor."""
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


def new_choices(routing: Choices, before: Choices) -> np.ndarray:
    """Returns whether each chosen expert was not among the experts of its pixel before, bool, `(E, ...)`.

    Args:
        routing: Experts chosen at each pixel, `(E, ...)`.
        before: Experts chosen before, of the same shape.
    """
    now, then = as_array(routing), as_array(before)
    if now.shape != then.shape:
        raise ValueError(f"routings of different shapes cannot be compared: {now.shape} and {then.shape}")
    # One slot after the other: a comparison of all with all would take E times the memory.
    return np.stack([(then != slot).all(axis=0) for slot in now])
