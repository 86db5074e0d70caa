"""Whether a routing names experts that exist, each at most once at a pixel."""

from __future__ import annotations

import ctypes

import torch

from smoe.ops.native.library import native_library


def check_choices(indices: torch.Tensor, num_experts: int) -> None:
    """Refuses a routing the kernels must not see.

    Args:
        indices: `(E, H, W)` or `(B, E, H, W)`, int64 or int32, on a CPU.
        num_experts: X.

    Raises:
        ValueError: for an expert out of range, or named twice at a pixel; with the place.
    """
    for sample, routing in enumerate(indices if indices.ndim == 4 else indices.unsqueeze(0)):
        problem = _find_problem(routing, num_experts)
        if problem is None:
            continue
        kind, slot, pixel, expert = problem
        where = f"slot {slot}, row {pixel // routing.shape[2]}, column {pixel % routing.shape[2]}"
        where = f"sample {sample}, {where}" if indices.ndim == 4 else where
        if kind == 1:
            raise ValueError(
                f"indices must be in [0, {num_experts - 1}] for {num_experts} experts, got {expert} at {where}"
            )
        raise ValueError(
            f"indices must name each expert at most once at a pixel, but expert {expert} comes again at {where}"
        )


def _find_problem(routing: torch.Tensor, num_experts: int) -> tuple[int, ...] | None:
    library = native_library()
    if library is None:
        return _find_problem_by_sorting(routing, num_experts)
    routing = routing.contiguous()
    problem = torch.zeros(4, dtype=torch.int64)
    sizes = (routing.shape[0], routing.shape[1] * routing.shape[2], num_experts)
    name = "smoe_check_int32" if routing.dtype == torch.int32 else "smoe_check_int64"
    library.call(name, routing, *(ctypes.c_int64(size) for size in sizes), problem)
    return tuple(problem.tolist()) if problem[0] else None


def _find_problem_by_sorting(routing: torch.Tensor, num_experts: int) -> tuple[int, ...] | None:
    flat = routing.flatten(1)
    outside = ((flat < 0) | (flat >= num_experts)).nonzero()
    if len(outside):
        slot, pixel = outside[0].tolist()
        return 1, slot, pixel, int(flat[slot, pixel])
    ranked, slots = flat.sort(dim=0, stable=True)
    repeated = (ranked[1:] == ranked[:-1]).nonzero()
    if len(repeated):
        rank, pixel = repeated[0].tolist()
        return 2, int(slots[rank + 1, pixel]), pixel, int(ranked[rank, pixel])
    return None
