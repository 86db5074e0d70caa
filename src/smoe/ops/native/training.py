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

    What is not asked for (`damping=None`, `rc_loss=False`) is None. The gradient is zero where an error was not finite.
    """
    num_experts, pixels = scores.shape[0], scores.shape[1] * scores.shape[2]
    error = error.contiguous()
    damped = torch.empty_like(error, memory_format=torch.contiguous_format) if damping is not None else None
    gradient = torch.empty_like(scores, memory_format=torch.contiguous_format) if rc_loss else None
    sizes = (error.shape[0], indices.shape[0], expert_channels, pixels, num_experts)
    scale = error.numel() / 2 / abs(loss_scale)
    is_nonfinite = ctypes.c_int64(0)
    library.call(
        "smoe_train_routing",
        error,
        *map(ctypes.c_int64, sizes),
        *map(ctypes.c_double, (scale, error_quantile, tolerance, damping_tolerance, damping or 0.0)),
        *(damped, scores.contiguous(), indices.contiguous(), ctypes.c_int64(indices.element_size())),
        *(ctypes.c_double(rc_weight * loss_scale / scores.numel()), gradient),
        ctypes.byref(is_nonfinite),
        _num_threads(),
    )
    return damped, gradient, bool(is_nonfinite.value)


def _num_threads() -> ctypes.c_int64:
    return ctypes.c_int64(torch.get_num_threads())
