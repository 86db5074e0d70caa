"""The memory that the C++ kernels of the routed convolution keep, which no tensor shows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

# Most bytes of all plans that no frozen layer holds; one plan is kept in any case (csrc/expert_lists/plan.cpp).
_MOST_PLANS = 512 << 20
# Packed weights and bands of rows.
_SCRATCH = 50_000_000
# Up to this number of weights of a pixel, and from this number of samples on, other kernels serve, which keep next to
# nothing (`Problem.family`).
_TINY, _BATCH_LANES = 96, 12


def kernel_bytes(operations: Iterable[tuple[Any, ...]]) -> int:
    """Bytes that the kernels keep between calls.

    For few samples they sort the pixels of each routing by their experts, and keep this plan: four bytes for each pixel
    and slot, and one or two to recognise the routing by.

    Args:
        operations: Calls of operators: name and shapes of their tensors, which for a routed convolution are input,
            weight and indices.
    """
    plans: dict[tuple[int, ...], int] = {}
    has_kernels = False
    for name, *shapes in operations:
        if name not in ("routed_conv2d", "routed_conv3d"):
            continue
        input, weight, indices = shapes[:3]
        if indices[1] * math.prod(weight[1:]) <= _TINY:
            continue
        has_kernels = True
        batch = input[0] if indices[0] == 1 else 1
        if batch < _BATCH_LANES:
            pixels = indices[0] * indices[1] * indices[2]
            plans[indices] = pixels * (5 if weight[0] <= 256 else 6)
    if not has_kernels:
        return 0
    return max(min(sum(plans.values()), _MOST_PLANS), max(plans.values(), default=0)) + _SCRATCH
