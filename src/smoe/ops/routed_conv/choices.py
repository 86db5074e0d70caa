"""Checks that the experts of a routing exist and are distinct at each pixel."""

from __future__ import annotations

import ctypes

import torch

from smoe.ops.native.library import native_library


def check_choices(indices: torch.Tensor, num_experts: int, width: int) -> None:
    """Raises an error for a routing that the kernels cannot take.

    Args:
        indices: Selected experts `(S, E, P)`, integers on a CPU.
        num_experts: X.
        width: Columns of the grid, for the place in the message.

    Raises:
        ValueError: If an expert is out of range or selected twice at a pixel. The message gives the place.
    """
    for sample, routing in enumerate(indices):
        problem = _find_problem(routing, num_experts)
        if problem is None:
            continue
        kind, slot, pixel, expert = problem
        where = f"slot {slot}, row {pixel // width}, column {pixel % width}"
        where = f"sample {sample}, {where}" if len(indices) > 1 else where
        if kind == 1:
            raise ValueError(
                f"indices must be in [0, {num_experts - 1}] for {num_experts} experts, got {expert} at {where}"
            )
        raise ValueError(
            f"indices must name each expert at most once at a pixel, but expert {expert} comes again at {where}"
        )


def assert_in_range(indices: torch.Tensor, num_experts: int) -> None:
    """As `check_choices`, of the range only, on the device: the host does not wait for the answer.

    An error ends the next operation that waits for the device, as errors of a GPU do.
    """
    is_inside = (indices >= 0) & (indices < num_experts)
    torch._assert_async(is_inside.all(), f"indices must be in [0, {num_experts - 1}] for {num_experts} experts")


def _find_problem(routing: torch.Tensor, num_experts: int) -> tuple[int, ...] | None:
    library = native_library()
    if library is None or routing.dtype != torch.int32:
        return _find_problem_by_sorting(routing, num_experts)
    problem = torch.zeros(4, dtype=torch.int64)
    sizes = (*routing.shape, num_experts)
    library.call("smoe_check_routing", routing.contiguous(), *(ctypes.c_int64(size) for size in sizes), problem)
    return tuple(problem.tolist()) if problem[0] else None


def _find_problem_by_sorting(routing: torch.Tensor, num_experts: int) -> tuple[int, ...] | None:
    outside = ((routing < 0) | (routing >= num_experts)).nonzero()
    if len(outside):
        slot, pixel = outside[0].tolist()
        return 1, slot, pixel, int(routing[slot, pixel])
    ranked, slots = routing.sort(dim=0, stable=True)
    repeated = (ranked[1:] == ranked[:-1]).nonzero()
    if len(repeated):
        rank, pixel = repeated[0].tolist()
        return 2, int(slots[rank + 1, pixel]), pixel, int(ranked[rank, pixel])
    return None
