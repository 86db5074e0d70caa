"""Which pixels share experts: sets of choices, and colours that tell how alike these are."""

from __future__ import annotations

import numpy as np


def selections(chosen: np.ndarray, num_experts: int) -> np.ndarray:
    """Whether an expert is among those chosen at a pixel.

    Args:
        chosen: Experts chosen at each pixel, `(E, H, W)`.
        num_experts: X.

    Returns:
        `(X, H, W)` bool.
    """
    if chosen.ndim != 3 or chosen.min() < 0 or chosen.max() >= num_experts:
        raise ValueError(
            f"chosen must hold experts from 0 to {num_experts - 1} in the shape (E, H, W), got {chosen.min()} to "
            f"{chosen.max()} in {chosen.shape}"
        )
    is_selected = np.zeros((num_experts, *chosen.shape[1:]), dtype=bool)
    np.put_along_axis(is_selected, chosen.astype(np.int64), True, axis=0)
    return is_selected


def similarity_colours(is_selected: np.ndarray, row_shares: np.ndarray | None = None) -> np.ndarray:
    """Colours such that pixels which share many experts look alike: the first three principal components as RGB.

    Args:
        is_selected: `(X, H, W)` bool.
        row_shares: How much the pixels of each row count, such that a column adds up to 1, `(H,)`; None: all alike.

    Returns:
        From 0 to 1, `(H, W, 3)`. Grey where all pixels have the same experts.
    """
    num_experts, rows, columns = is_selected.shape
    shares = np.full(rows, 1.0 / rows) if row_shares is None else row_shares
    area = np.repeat(shares, columns) / columns
    pixels = is_selected.reshape(num_experts, -1).T.astype(np.float64)
    centred = pixels - area @ pixels
    variances, directions = np.linalg.eigh((centred * area[:, None]).T @ centred)
    components = np.zeros((rows * columns, 3))
    num_components = min(3, num_experts)
    # The largest variances come last. The sign of a direction is free: made such that its largest part is positive.
    leading = directions[:, ::-1][:, :num_components]
    leading = leading * np.sign(leading[np.abs(leading).argmax(0), np.arange(num_components)])
    components[:, :num_components] = (centred @ leading) * (variances[::-1][:num_components] > 1e-12)
    # One scale for all three: a component of little variance must not look like a strong one.
    scale = 2.2 * np.sqrt(area @ components[:, 0] ** 2) or 1.0
    return np.clip(0.5 + 0.5 * components / scale, 0.0, 1.0).reshape(rows, columns, 3)
