"""The training of the routing by the C++ kernels: the same results as `smoe.ops.routing_error`, in fewer passes."""

from __future__ import annotations

import ctypes

import torch

from smoe.ops.native.library import NativeLibrary, native_library


def library_for(*tensors: torch.Tensor) -> NativeLibrary | None:
    """The library, if it can work on these tensors: float32 on a CPU."""
    is_ours = all(tensor.device.type == "cpu" and tensor.dtype == torch.float32 for tensor in tensors)
    return native_library() if is_ours else None


def native_error_quantile(library: NativeLibrary, errors: torch.Tensor, quantile: float) -> torch.Tensor:
    """As `smoe.ops.error_quantile`."""
    rows = errors.detach().flatten(1).contiguous()
    result = rows.new_empty(rows.shape[0])
    sizes = (ctypes.c_int64(rows.shape[0]), ctypes.c_int64(rows.shape[1]))
    library.call("smoe_error_quantile", rows, *sizes, ctypes.c_double(quantile), result, _num_threads())
    return result


def native_train_routing(
    library: NativeLibrary,
    error: torch.Tensor,
    scores: torch.Tensor,
    indices: torch.Tensor,
    loss_scale: float,
    expert_channels: int,
    *,
    rc_loss: bool,
    rc_weight: float,
    error_quantile: float,
    damping: float | None,
    tolerance: float,
    damping_tolerance: float,
) -> tuple[torch.Tensor | None, torch.Tensor | None, bool]:
    """The damped error, the RC gradient at shared scores `(X, H, W)`, and whether an error was not finite.

    What is not asked for (`damping=None`, `rc_loss=False`) is None.
    """
    num_experts, num_selected, pixels = scores.shape[0], indices.shape[0], indices[0].numel()
    memory_format = torch.contiguous_format
    error = error.contiguous()
    damped = torch.empty_like(error, memory_format=memory_format) if damping is not None else error
    wrong_share, unselected_label = error.new_empty(num_selected, pixels), error.new_empty(pixels)
    is_nonfinite = torch.zeros((), dtype=torch.int64)
    scale = error.numel() / 2 / abs(loss_scale)
    library.call(
        "smoe_train_routing",
        error,
        *(ctypes.c_int64(size) for size in (error.shape[0], num_selected, expert_channels, pixels)),
        *(ctypes.c_double(value) for value in (scale, error_quantile, tolerance, damping_tolerance, damping or 0.0)),
        *(ctypes.c_int64(value) for value in (damping is not None, rc_loss, num_experts)),
        *(damped, wrong_share, unselected_label, is_nonfinite),
        _num_threads(),
    )
    gradient = None
    if rc_loss:
        gradient = torch.empty_like(scores, memory_format=memory_format)
        library.call(
            "smoe_routing_gradient",
            *(scores.contiguous(), indices.to(torch.int32).contiguous(), wrong_share, unselected_label),
            *(ctypes.c_int64(size) for size in (num_experts, num_selected, pixels)),
            ctypes.c_double(rc_weight * loss_scale),
            gradient,
            _num_threads(),
        )
    return damped if damping is not None else None, gradient, bool(is_nonfinite)


def _num_threads() -> ctypes.c_int64:
    return ctypes.c_int64(torch.get_num_threads())
