"""From gate scores to the experts chosen at each pixel (paper section 2.1, top-E routing)."""

from __future__ import annotations

import ctypes
import math
from typing import NamedTuple

import torch

from smoe.ops.native.library import has_library, native_library
from smoe.options import ORDERS, Order

# Up to here, picking the best expert again and again beats sorting all of them (measured at 256 experts).
_MAX_REPEATED = 16


class Routing(NamedTuple):
    """What a gate decided.

    Attributes:
        indices: experts chosen at each pixel, `(E, H, W)`, or `(B, E, H, W)` where each sample has its own; int64.
        weights: their scores, of the same shape.
    """

    indices: torch.Tensor
    weights: torch.Tensor


def top_experts(scores: torch.Tensor, num_selected: int, order: Order = "score") -> Routing:
    """Chooses the experts with the highest scores at each pixel.

    Ties: the lower expert number wins, on every device. (`torch.topk` promises nothing about ties.)

    Args:
        scores: `(X, H, W)` or `(B, X, H, W)`, finite.
        num_selected: experts to choose at each pixel, between 1 and X.
        order: `score` puts each pixel's favourite expert first, as in the paper; `index` sorts the chosen ones by
            expert number, so that an expert keeps its place while the scores move.

    Returns:
        The choice. Its weights carry the gradient of `scores`.
    """
    indices = rank_experts(scores, num_selected, order).long()
    return Routing(indices, scores.gather(-3, indices))


def rank_experts(scores: torch.Tensor, num_selected: int, order: Order = "score") -> torch.Tensor:
    """The `indices` of `top_experts`, without gathering their weights.

    They are int32 where the C++ kernels rank, because the kernels that use them read int32 and a large layer feels
    the difference; elsewhere int64, which PyTorch's gather asks for.
    """
    if scores.ndim not in (3, 4):
        raise ValueError(f"scores must be (X, H, W) or (B, X, H, W), got shape {tuple(scores.shape)}")
    num_experts = scores.shape[-3]
    if not 1 <= num_selected <= num_experts:
        raise ValueError(f"num_selected must be in [1, {num_experts}], got {num_selected}")
    if order not in ORDERS:
        raise ValueError(f"order must be one of {', '.join(ORDERS)}, got {order!r}")
    if not (torch.compiler.is_compiling() or scores.is_meta):
        _refuse_nonfinite(scores.detach())
    indices = _top_indices(scores.detach(), num_selected)
    if order == "index":
        indices = indices.sort(dim=-3).values
    return indices


def _top_indices(scores: torch.Tensor, num_selected: int) -> torch.Tensor:
    if scores.device.type == "cpu" and scores.dtype == torch.float32 and has_library():
        return torch.ops.smoe.top_experts(scores, num_selected)
    # `max` gives the first of equal values, and a stable sort keeps them in order: both let the lower index win.
    # (`argmax` does too, but takes twenty times as long on a CPU.)
    if num_selected == 1:
        return scores.max(dim=-3, keepdim=True).indices
    if num_selected <= _MAX_REPEATED:
        return _repeated_max(scores, num_selected)
    return scores.sort(dim=-3, descending=True, stable=True).indices.narrow(-3, 0, num_selected)


_LIBRARY = torch.library.Library("smoe", "FRAGMENT")
_LIBRARY.define("top_experts(Tensor scores, int num_selected) -> Tensor")


@torch.library.impl(_LIBRARY, "top_experts", "CPU")
def _native_top_experts(scores: torch.Tensor, num_selected: int) -> torch.Tensor:
    library = native_library()
    assert library is not None
    scores = scores.contiguous()
    *samples, num_experts, height, width = scores.shape
    indices = torch.empty(*samples, num_selected, height, width, dtype=torch.int32)
    sizes = [ctypes.c_int64(size) for size in (num_experts, num_selected, height * width)]
    threads = ctypes.c_int64(torch.get_num_threads())
    for sample, ranked in zip(scores.view(-1, *scores.shape[-3:]), indices.view(-1, *indices.shape[-3:]), strict=True):
        library.call("smoe_top_experts", sample, *sizes, ranked, threads)
    return indices


@torch.library.register_fake("smoe::top_experts", lib=_LIBRARY)
def _(scores: torch.Tensor, num_selected: int) -> torch.Tensor:
    shape = (*scores.shape[:-3], num_selected, *scores.shape[-2:])
    return scores.new_empty(shape, dtype=torch.int32)


def _repeated_max(scores: torch.Tensor, num_selected: int) -> torch.Tensor:
    remaining = scores.clone()
    chosen: list[torch.Tensor] = []
    for _ in range(num_selected):
        best = remaining.max(dim=-3, keepdim=True).indices
        chosen.append(best)
        remaining.scatter_(-3, best, -torch.inf)
    return torch.cat(chosen, dim=-3)


def _refuse_nonfinite(scores: torch.Tensor) -> None:
    # One number tells almost always, in a tenth of the time; a sum of finite scores may overflow.
    if math.isfinite(float(scores.sum())):
        return
    is_finite = scores.isfinite()
    if not is_finite.all():
        first = tuple(is_finite.logical_not().nonzero()[0].tolist())
        raise ValueError(
            f"{int(is_finite.logical_not().sum())} of {scores.numel()} gate scores are not finite, the first, "
            f"{float(scores[first])}, at {first}: they cannot be ranked; look for a diverged loss or a NaN in the "
            "gate's input"
        )
