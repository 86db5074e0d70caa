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
    """The damped error, the RC gradient at the scores, and whether an error was not finite.

    What is not asked for (`damping=None`, `rc_loss=False`) is None. The gradient is zero if an error was not finite.
    """
    num_experts, num_selected = scores.shape[-3], indices.shape[-3]
    pixels = scores.shape[-2] * scores.shape[-1]
    error, scores, indices = error.contiguous(), scores.contiguous(), indices.contiguous()
    damped = torch.empty_like(error) if damping is not None else None
    gradient = torch.empty_like(scores) if rc_loss else None
    scale = error.numel() / 2 / abs(loss_scale)
    options = [ctypes.c_double(value) for value in (scale, error_quantile, tolerance, damping_tolerance, damping or 0)]
    factor = ctypes.c_double(rc_weight * loss_scale / scores.numel())
    # Scores of their own make each sample a batch of one: its labels are no mean over others.
    is_shared = scores.ndim == 3
    batch, num_calls = (error.shape[0], 1) if is_shared else (1, error.shape[0])
    sizes = [ctypes.c_int64(size) for size in (batch, num_selected, expert_channels, pixels, num_experts)]
    is_nonfinite = False
    for call in range(num_calls):
        here = [
            tensor if is_shared or tensor is None else tensor[call]
            for tensor in (error, damped, scores, indices, gradient)
        ]
        found = ctypes.c_int64(0)
        library.call(
            "smoe_train_routing",
            *(here[0], *sizes, *options),
            *(*here[1:4], ctypes.c_int64(indices.element_size())),
            *(factor, here[4], ctypes.byref(found), _num_threads()),
        )
        is_nonfinite |= bool(found.value)
    if is_nonfinite and gradient is not None:
        gradient.zero_()
    return damped, gradient, is_nonfinite


def _num_threads() -> ctypes.c_int64:
    return ctypes.c_int64(torch.get_num_threads())
