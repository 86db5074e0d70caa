"""How much each expert is used, and where."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from smoe.diagnostics.choices import Choices, as_array, as_choices, as_pixel_weights


def selections(routing: Choices, num_experts: int) -> np.ndarray:
    """Returns whether each expert is among those chosen at a pixel, bool, `(X, ...)`.

    Args:
        routing: Experts chosen at each pixel, `(E, ...)`.
        num_experts: Number of experts in the bank, X.
    """
    choices = as_choices(routing, num_experts)
    is_selected = np.zeros((num_experts, *choices.shape[1:]), dtype=bool)
    np.put_along_axis(is_selected, choices.astype(np.int64), True, axis=0)
    return is_selected


def expert_use(routing: Choices, num_experts: int, pixel_weights: np.ndarray | Tensor | None = None) -> np.ndarray:
    """Returns the share of the pixels that each expert serves, `(X,)`. The sum is E.

    Args:
        routing: Experts chosen at each pixel, `(E, ...)`.
        num_experts: Number of experts in the bank, X.
        pixel_weights: How much each pixel counts, such as its area; must broadcast to the grid.
    """
    choices = as_choices(routing, num_experts)
    weights = as_pixel_weights(pixel_weights, choices.shape[1:])
    repeated = np.broadcast_to(weights, choices.shape)
    return np.bincount(choices.ravel(), weights=repeated.ravel(), minlength=num_experts)


def mean_where_served(
    routing: Choices,
    field: np.ndarray | Tensor,
    num_experts: int,
    pixel_weights: np.ndarray | Tensor | None = None,
) -> np.ndarray:
    """Returns the mean of a field over the pixels that each expert serves, `(X,)`; NaN for an unused expert.

    The mean of a land mask is the share of land in the area that an expert serves.

    Args:
        routing: Experts chosen at each pixel, `(E, ...)`.
        field: A number for each pixel.
        num_experts: Number of experts in the bank, X.
        pixel_weights: How much each pixel counts, such as its area; must broadcast to the grid.
    """
    choices = as_choices(routing, num_experts)
    values = as_array(field)
    if values.shape != choices.shape[1:]:
        raise ValueError(f"field has the shape {values.shape}, but the routing's pixels {choices.shape[1:]}")
    weights = as_pixel_weights(pixel_weights, choices.shape[1:])
    of_field = np.broadcast_to(weights * values, choices.shape)
    sums = np.bincount(choices.ravel(), weights=of_field.ravel(), minlength=num_experts)
    served = expert_use(choices, num_experts, weights)
    return np.divide(sums, served, out=np.full(num_experts, np.nan), where=served > 0)
