"""Deviation of the learned experts from the true stencils."""

from __future__ import annotations

import numpy as np


def largest_deviation(stencils: np.ndarray, experts: np.ndarray, regions: np.ndarray) -> float:
    """Returns the largest difference between a weight of an expert and of the stencil of its region.

    The smaller kernel of the two is surrounded by zeros. Experts without a region are left out.

    Args:
        stencils: Stencil of each region, `(R, j, j)`, j odd.
        experts: Kernel of each expert, `(X, k, k)`, k odd.
        regions: Region of each expert, -1 for none, `(X,)`.
    """
    size = max(stencils.shape[-1], experts.shape[-1])
    used = regions >= 0
    difference = _surround(experts, size)[used] - _surround(stencils, size)[regions[used]]
    return float(np.abs(difference).max())


def _surround(kernels: np.ndarray, size: int) -> np.ndarray:
    margin = (size - kernels.shape[-1]) // 2
    return np.pad(kernels.astype(np.float64), ((0, 0), (margin, margin), (margin, margin)))
