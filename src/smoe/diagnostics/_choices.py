"""Arrays of chosen experts: use, regions, neighbours, and the matching of two routings."""

from __future__ import annotations

import numpy as np
from torch import Tensor

Choices = np.ndarray | Tensor
"""Experts chosen at each pixel, integers `(E, ...)`: a line `(E, L)`, a map `(E, H, W)`, nodes of a mesh `(E, P)`."""


def as_choices(routing: Choices, num_experts: int) -> np.ndarray:
    """Returns a routing as an array, after checking it."""
    array = as_array(routing)
    if array.ndim < 2 or array.size == 0 or array.dtype.kind not in "iu":
        raise ValueError(f"a routing must hold integers of shape (E, ...), got {array.dtype} of shape {array.shape}")
    if array.min() < 0 or array.max() >= num_experts:
        raise ValueError(f"a routing must be in [0, {num_experts - 1}], got [{array.min()}, {array.max()}]")
    return array


def as_regions(regions: Choices, pixels: tuple[int, ...]) -> np.ndarray:
    """Returns the region of each pixel as an array, after checking it."""
    array = as_array(regions)
    if array.dtype.kind not in "iu":
        raise ValueError(f"regions must be integers, got {array.dtype}")
    if array.shape != pixels:
        raise ValueError(f"regions have the shape {array.shape}, but the routing's pixels {pixels}")
    if array.min() < 0:
        raise ValueError(f"regions must be 0, 1, ..., got {array.min()}")
    return array


def as_pixel_weights(pixel_weights: np.ndarray | Tensor | None, pixels: tuple[int, ...]) -> np.ndarray:
    """Returns how much each pixel counts, of sum 1, float64, in the shape of the grid."""
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
    """Returns whether each chosen expert was not among the experts of its pixel before, bool, `(E, ...)`."""
    now, then = as_array(routing), as_array(before)
    if now.shape != then.shape:
        raise ValueError(f"routings of different shapes cannot be compared: {now.shape} and {then.shape}")
    # One slot after the other: a comparison of all with all would take E times the memory.
    return np.stack([(then != slot).all(axis=0) for slot in now])


def selections(routing: Choices, num_experts: int) -> np.ndarray:
    """Returns whether each expert is among those chosen at a pixel, bool, `(X, ...)`."""
    choices = as_choices(routing, num_experts)
    is_selected = np.zeros((num_experts, *choices.shape[1:]), dtype=bool)
    np.put_along_axis(is_selected, choices.astype(np.int64), True, axis=0)
    return is_selected


def expert_use(routing: Choices, num_experts: int, pixel_weights: np.ndarray | Tensor | None = None) -> np.ndarray:
    """Returns the share of the pixels that each expert serves, `(X,)`. The sum is E."""
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


def neighbour_agreement(routing: Choices, num_experts: int) -> np.ndarray:
    """Returns the share of each pixel's experts that also serve a neighbour, averaged over its neighbours.

    Neighbours are one step apart along one axis of the grid: two on a line, four on a map, six in a volume, fewer at
    the edges. White noise is near E / X everywhere; regions have borders. 0 for a grid of one pixel.
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


def region_information(routing: Choices, regions: Choices, num_experts: int) -> float:
    """Returns how much one of a pixel's experts, drawn at random, tells of the region in which the pixel lies.

    This is the mutual information of expert and region over the entropy of the regions: 0 if all experts serve all
    regions alike, 1 if no expert serves two of them.
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

    Returns:
        Regions, -1 for an expert that no pixel chose, int64, `(X,)`.
    """
    counts = _counts(routing, regions, num_experts)
    return np.where(counts.any(axis=1), counts.argmax(axis=1), -1)


def region_agreement(routing: Choices, regions: Choices, num_experts: int) -> float:
    """Returns the share of the choices whose expert belongs to the region of the pixel, in [0, 1]."""
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


_PIXELS_AT_ONCE = 65_536


def match_experts(routing: Choices, other: Choices, num_experts: int) -> np.ndarray:
    """Pairs the experts of two routings one to one, such that pairs serve as many pixels together as possible.

    Needs scipy, which the extra `fit` installs.

    Returns:
        For each expert of `routing`, its partner in `other`, int64, `(X,)`.
    """
    from scipy.optimize import linear_sum_assignment

    return linear_sum_assignment(_overlap(routing, other, num_experts), maximize=True)[1]


def shared_choices(routing: Choices, other: Choices, num_experts: int) -> float:
    """Returns the share of the choices of a routing that another one shares, in [0, 1], after matching the experts."""
    overlap = _overlap(routing, other, num_experts)
    num_shared = overlap[np.arange(num_experts), match_experts(routing, other, num_experts)].sum()
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
