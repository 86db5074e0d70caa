"""How a routing relates to known regions, such as land and sea (paper, heat diffusion)."""

from __future__ import annotations

import numpy as np

from smoe.diagnostics.choices import Choices, as_choices, as_regions


def region_information(routing: Choices, regions: Choices, num_experts: int) -> float:
    """Returns how much one of a pixel's experts, drawn at random, tells of the region in which the pixel lies.

    This is the mutual information of expert and region over the entropy of the regions: 0 if all experts serve all
    regions alike, 1 if no expert serves two of them.

    Args:
        routing: Experts chosen at each pixel, `(E, ...)`.
        regions: Number of the region of each pixel, from 0.
        num_experts: Number of experts in the bank, X.
    """
    counts = _counts(routing, regions, num_experts)
    joint = counts / counts.sum()
    of_regions = _entropy(joint.sum(axis=0))
    if of_regions == 0.0:
        return 0.0
    return (of_regions + _entropy(joint.sum(axis=1)) - _entropy(joint)) / of_regions


def regions_of_experts(routing: Choices, regions: Choices, num_experts: int) -> np.ndarray:
    """Returns for each expert the region in which most of its pixels lie; the lowest one if several have as many.

    Several experts may share a region, and a region may have none.

    Args:
        routing: Experts chosen at each pixel, `(E, ...)`.
        regions: Number of the region of each pixel, from 0.
        num_experts: Number of experts in the bank, X.

    Returns:
        Regions, -1 for an expert that no pixel chose, int64, `(X,)`.
    """
    counts = _counts(routing, regions, num_experts)
    return np.where(counts.any(axis=1), counts.argmax(axis=1), -1)


def region_agreement(routing: Choices, regions: Choices, num_experts: int) -> float:
    """Returns the share of the choices whose expert belongs to the region of the pixel, in [0, 1].

    Args:
        routing: Experts chosen at each pixel, `(E, ...)`.
        regions: Number of the region of each pixel, from 0.
        num_experts: Number of experts in the bank, X.
    """
    counts = _counts(routing, regions, num_experts)
    return int(counts.max(axis=1).sum()) / int(counts.sum())


def _counts(routing: Choices, regions: Choices, num_experts: int) -> np.ndarray:
    """Number of pixels of each region that each expert serves, `(X, R)`."""
    choices = as_choices(routing, num_experts)
    numbers = as_regions(regions, choices.shape[1:])
    num_regions = int(numbers.max()) + 1
    # In int64, since a map in a small type would overflow here.
    pairs = choices.astype(np.int64) * num_regions + numbers.astype(np.int64)
    counts = np.bincount(pairs.ravel(), minlength=num_experts * num_regions)
    return counts.reshape(num_experts, num_regions)


def _entropy(shares: np.ndarray) -> float:
    positive = shares[shares > 0]
    return float(-(positive * np.log(positive)).sum())
