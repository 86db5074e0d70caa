"""Experts have no order: matching the learned routing to the true regions (paper, heat diffusion)."""

from __future__ import annotations

import numpy as np


def regions_of_experts(routing_map: np.ndarray, region_map: np.ndarray, num_experts: int) -> np.ndarray:
    """Find for each expert the region in which most of its pixels lie; of equal regions, the lowest.

    Several experts may share a region, and a region may have none.

    Args:
        routing_map: Expert chosen at each pixel, in [0, X), `(H, W)`.
        region_map: True region of each pixel, from 0, `(H, W)`.
        num_experts: Number of experts in the bank, X.

    Returns:
        Regions, -1 for an expert that no pixel chose, int64, `(X,)`.
    """
    _check_maps(routing_map, region_map, num_experts)
    num_regions = int(region_map.max()) + 1
    # In int64, since a map in a small type would overflow here.
    pair = routing_map.astype(np.int64) * num_regions + region_map.astype(np.int64)
    num_pixels = np.bincount(pair.ravel(), minlength=num_experts * num_regions).reshape(num_experts, num_regions)
    return np.where(num_pixels.any(axis=1), num_pixels.argmax(axis=1), -1)


def matched_map(routing_map: np.ndarray, region_map: np.ndarray, num_experts: int) -> np.ndarray:
    """Rename the experts of a routing map to their regions.

    Args:
        routing_map: Expert chosen at each pixel, in [0, X), `(H, W)`.
        region_map: True region of each pixel, from 0, `(H, W)`.
        num_experts: Number of experts in the bank, X.

    Returns:
        Regions, int64, `(H, W)`.
    """
    return regions_of_experts(routing_map, region_map, num_experts)[routing_map]


def agreement(routing_map: np.ndarray, region_map: np.ndarray, num_experts: int) -> float:
    """Return the fraction of pixels whose expert belongs to their true region, in [0, 1].

    Args:
        routing_map: Expert chosen at each pixel, in [0, X), `(H, W)`.
        region_map: True region of each pixel, from 0, `(H, W)`.
        num_experts: Number of experts in the bank, X.
    """
    return float(np.mean(matched_map(routing_map, region_map, num_experts) == region_map))


def _check_maps(routing_map: np.ndarray, region_map: np.ndarray, num_experts: int) -> None:
    for name, array in (("routing_map", routing_map), ("region_map", region_map)):
        if array.ndim != 2 or array.size == 0 or array.dtype.kind not in "iu":
            raise ValueError(f"{name} must hold integers of shape (H, W), got {array.dtype} of shape {array.shape}")
    if routing_map.shape != region_map.shape:
        raise ValueError(f"routing_map has shape {routing_map.shape}, but region_map {region_map.shape}")
    if region_map.min() < 0:
        raise ValueError(f"regions must be 0, 1, ..., got {region_map.min()}")
    if routing_map.min() < 0 or routing_map.max() >= num_experts:
        raise ValueError(
            f"routing_map must be in [0, {num_experts - 1}], got [{routing_map.min()}, {routing_map.max()}]"
        )
