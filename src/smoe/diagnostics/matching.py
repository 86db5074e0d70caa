"""Matching the experts of two routings: experts have no order, so those of two runs are paired by what they serve."""

from __future__ import annotations

import numpy as np

from smoe.diagnostics.choices import Choices, as_choices
from smoe.diagnostics.expert_use import selections

_PIXELS_AT_ONCE = 65_536


def match_experts(routing: Choices, other: Choices, num_experts: int) -> np.ndarray:
    """Pairs the experts of two routings one to one, such that pairs serve as many pixels together as possible.

    Args:
        routing: Experts chosen at each pixel, `(E, ...)`.
        other: Experts that another run chose on the same grid, `(E', ...)`.
        num_experts: Number of experts in both banks, X.

    Returns:
        For each expert of `routing`, its partner in `other`, int64, `(X,)`.
    """
    return _best_assignment(_overlap(routing, other, num_experts))


def shared_choices(routing: Choices, other: Choices, num_experts: int) -> float:
    """Returns the share of the choices of a routing that another one shares, in [0, 1], after matching the experts.

    Args:
        routing: Experts chosen at each pixel, `(E, ...)`.
        other: Experts that another run chose on the same grid, `(E', ...)`.
        num_experts: Number of experts in both banks, X.
    """
    overlap = _overlap(routing, other, num_experts)
    num_shared = overlap[np.arange(num_experts), _best_assignment(overlap)].sum()
    return int(num_shared) / as_choices(routing, num_experts).size


def _overlap(routing: Choices, other: Choices, num_experts: int) -> np.ndarray:
    """Number of pixels that an expert of one routing (rows) and one of the other (columns) serve, `(X, X)`."""
    first, second = selections(routing, num_experts), selections(other, num_experts)
    if first.shape != second.shape:
        raise ValueError(f"the routings have pixels of different shapes: {first.shape[1:]} and {second.shape[1:]}")
    first, second = first.reshape(num_experts, -1), second.reshape(num_experts, -1)
    overlap = np.zeros((num_experts, num_experts), dtype=np.int64)
    # In pieces, for which float32 counts exactly; a product of integers is many times slower.
    for start in range(0, first.shape[1], _PIXELS_AT_ONCE):
        piece = slice(start, start + _PIXELS_AT_ONCE)
        overlap += (first[:, piece].astype(np.float32) @ second[:, piece].astype(np.float32).T).astype(np.int64)
    return overlap


def _best_assignment(gain: np.ndarray) -> np.ndarray:
    """Column of each row of a square matrix such that the sum is largest: the Hungarian algorithm, cubic in X."""
    size = len(gain)
    # Row and column 0 stand for "none yet". A potential of each row and column keeps all reduced costs above zero.
    cost = np.zeros((size + 1, size + 1))
    cost[1:, 1:] = -gain
    of_rows, of_columns = np.zeros(size + 1), np.zeros(size + 1)
    row_of_column = np.zeros(size + 1, dtype=np.int64)
    for row in range(1, size + 1):
        row_of_column[0], column = row, 0
        least = np.full(size + 1, np.inf)
        came_from = np.zeros(size + 1, dtype=np.int64)
        is_visited = np.zeros(size + 1, dtype=bool)
        while row_of_column[column] != 0:
            is_visited[column] = True
            current = row_of_column[column]
            reduced = cost[current] - of_rows[current] - of_columns
            is_less = ~is_visited & (reduced < least)
            least[is_less], came_from[is_less] = reduced[is_less], column
            column = int(np.where(is_visited, np.inf, least).argmin())
            step = least[column]
            of_rows[row_of_column[is_visited]] += step
            of_columns[is_visited] -= step
            least[~is_visited] -= step
        # Along the path back, each column takes the row of the one before it.
        while column != 0:
            before = came_from[column]
            row_of_column[column], column = row_of_column[before], int(before)
    return row_of_column[1:].argsort()
