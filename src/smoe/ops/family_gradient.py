"""The straight-through gradient of families of experts.

A family is a softmax over its candidates of which one alone is computed in forward. In backward, the score of candidate
k receives the gradient that it would have if the softmax mixed the outputs, taken where the selected experts serve:

    pi_k (D_k - sum_j pi_j D_j) / temperature,  D_k = sum over samples and outputs of error * output of candidate k.

Adding the same number to all D of a family changes nothing.
"""

from __future__ import annotations

import ctypes
import math

import torch

from smoe.ops.native.library import library_for, num_threads
from smoe.ops.registration import register_operator


def family_gradient(
    scores: torch.Tensor, products: torch.Tensor, num_families: int, temperature: float = 1.0
) -> torch.Tensor:
    """The gradient at the scores.

    Args:
        scores: `(1, X, P)`.
        products: D of each expert, `(1, X, P)`, up to a number for each family and pixel.
        num_families: E.
        temperature: Temperature of the softmax.

    Returns:
        `(1, X, P)`.
    """
    places = _places(scores.shape[1], num_families, scores.device)
    logits = _by_family(scores[0] / temperature, num_families, places, -torch.inf)
    products = _by_family(products[0].to(scores.dtype), num_families, places, 0.0)
    return _of_softmax(logits, products, temperature, places)


def relative_family_gradient(
    scores: torch.Tensor,
    products: torch.Tensor,
    num_families: int,
    temperature: float = 1.0,
    factor: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient at the scores in units of the spread of the products.

    D less the mean of its family is divided by the root mean square of that over all experts and pixels, so that
    neither the scale of the loss nor that of the data has an effect but by the factor.

    Args:
        scores: `(1, X, P)`.
        products: D of each expert, `(1, X, P)`, up to a number for each family and pixel.
        num_families: E.
        temperature: Temperature of the softmax.
        factor: Factor of the gradient, a scalar on the device of the scores; None for 1.

    Returns:
        The gradient, `(1, X, P)`, and the spread, a scalar. Where the spread is 0 or not finite, the gradient is 0.
    """
    factor = torch.ones((), device=scores.device) if factor is None else factor
    return _relative_gradient(scores.detach(), products, num_families, temperature, factor)


def _dense(
    scores: torch.Tensor, products: torch.Tensor, num_families: int, temperature: float, factor: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    places = _places(scores.shape[1], num_families, scores.device)
    logits = _by_family(scores[0] / temperature, num_families, places, -torch.inf)
    products = _by_family(products[0].to(scores.dtype), num_families, places, 0.0)
    is_member = logits > -torch.inf
    products = products - products.sum(dim=1, keepdim=True) / is_member.sum(dim=1, keepdim=True)
    products = torch.where(is_member, products, 0.0)
    # In float64, because squares of small errors would be 0.
    norm = torch.linalg.vector_norm(products, dtype=torch.float64)
    spread = (norm / math.sqrt(max(1, scores[0].numel()))).to(products.dtype)
    # The inverse of a smaller spread is not finite.
    is_usable = spread.isfinite() & (spread >= torch.finfo(spread.dtype).tiny)
    products = torch.where(is_usable, products, 0.0) / torch.where(is_usable, spread, 1.0)
    return _of_softmax(logits, products * factor.to(products.dtype), temperature, places), spread


def _native(
    scores: torch.Tensor, products: torch.Tensor, num_families: int, temperature: float, factor: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    library = library_for(scores, products)
    if library is None or scores.numel() == 0:
        return _dense(scores, products, num_families, temperature, factor)
    scores, products = scores.contiguous(), products.contiguous()
    _, num_experts, num_pixels = scores.shape
    gradient, spread = torch.empty_like(scores), scores.new_empty(())
    library.call(
        "smoe_family_gradient",
        *(scores, products, *(ctypes.c_int64(size) for size in (num_experts, num_families, num_pixels))),
        *(ctypes.c_float(temperature), factor.to(scores), gradient, spread, num_threads()),
    )
    return gradient, spread


def _fake(
    scores: torch.Tensor, products: torch.Tensor, num_families: int, temperature: float, factor: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    del products, num_families, temperature, factor
    return scores.new_empty(scores.shape), scores.new_empty(())


_relative_gradient = register_operator(
    "family_gradient(Tensor scores, Tensor products, int num_families, float temperature, Tensor factor) "
    "-> (Tensor, Tensor)",
    dense=_dense,
    native=_native,
    fake=_fake,
)


def _of_softmax(
    logits: torch.Tensor, products: torch.Tensor, temperature: float, places: torch.Tensor | None
) -> torch.Tensor:
    probability = logits.softmax(dim=1)
    mean = (probability * products).sum(dim=1, keepdim=True)
    gradient = ((products - mean) * probability / temperature).flatten(0, 1)
    return (gradient if places is None else gradient[places])[None]


def _places(num_experts: int, num_families: int, device: torch.device) -> torch.Tensor | None:
    """Place of each expert among families that are padded to the size of the largest, `(X,)`; None if all are equal."""
    size, larger = divmod(num_experts, num_families)
    if larger == 0:
        return None
    expert = torch.arange(num_experts, device=device)
    # The first `larger` families have one expert more; each later one has one place that is empty.
    later = (expert - larger * (size + 1)) // size
    return torch.where(expert < larger * (size + 1), expert, expert + later.clamp(min=0))


def _by_family(values: torch.Tensor, num_families: int, places: torch.Tensor | None, fill: float) -> torch.Tensor:
    """`(X, P)` as `(E, K, P)`."""
    if places is not None:
        largest = -(-values.shape[0] // num_families)
        empty = values.new_full((num_families * largest, values.shape[1]), fill)
        values = empty.index_copy_(0, places, values)
    return values.unflatten(0, (num_families, -1))


def slot_products(error: torch.Tensor, outputs: torch.Tensor, expert_channels: int) -> torch.Tensor:
    """Sum over samples and an expert's outputs of error times output, `(E, P)`, in at least float32.

    Args:
        error: `(B, E * F, P)`.
        outputs: `(B, E * F, P)`.
        expert_channels: F.
    """
    total = torch.zeros(error.shape[1:], dtype=torch.promote_types(error.dtype, torch.float32), device=error.device)
    # One sample after the other, so that no product of the size of the batch is stored.
    for sample, output in zip(error, outputs, strict=True):
        total.addcmul_(sample.to(total.dtype), output.to(total.dtype))
    return total if expert_channels == 1 else total.unflatten(0, (-1, expert_channels)).sum(dim=1)
