"""Families of experts: selection with noise, and the straight-through gradient.

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
from smoe.ops.top_experts import family_members, refuse_nonfinite

# Standard deviation of the sum of four bytes.
_BYTES_STD = math.sqrt(4 * (256**2 - 1) / 12)


def family_sizes(num_experts: int, num_families: int) -> list[int]:
    """Number of experts in each family: near-equal, the larger ones first."""
    size, larger = divmod(num_experts, num_families)
    return [size + (family < larger) for family in range(num_families)]


def sample_families(scores: torch.Tensor, num_selected: int, seed: torch.Tensor, noise: float) -> torch.Tensor:
    """Selects the best expert of each family after noise was added to the scores.

    The noise is nearly Gaussian and bounded by 3.5 standard deviations: an expert that leads its family by more than
    twice that is selected for certain.

    Args:
        scores: Scores `(1, X, P)`.
        num_selected: E, the number of families.
        seed: Seed of the noise, an int64 scalar on the device of the scores; it is read modulo 2^32.
        noise: Standard deviation of the noise, which is independent for each expert and pixel.

    Returns:
        Expert numbers `(1, E, P)`, int32.
    """
    return torch.ops.smoe.sample_families(scores.detach(), num_selected, seed, noise / _BYTES_STD)


def _scramble(bits: torch.Tensor) -> torch.Tensor:
    """A bijection of 32 bits, held in int64, whose outputs pass as random (lowbias32)."""
    mask = 0xFFFFFFFF
    bits = bits ^ (bits >> 16)
    bits = (bits * 0x7FEB352D) & mask
    bits = bits ^ (bits >> 15)
    bits = (bits * 0x846CA68B) & mask
    return bits ^ (bits >> 16)


def _dense_sample(scores: torch.Tensor, num_selected: int, seed: torch.Tensor, factor: float) -> torch.Tensor:
    if scores.device.type == "cpu" and not torch.compiler.is_compiling():
        refuse_nonfinite(scores)
    mask = 0xFFFFFFFF
    place = torch.arange(scores.shape[1] * scores.shape[2], device=scores.device) & mask
    bits = _scramble((place * 0x9E3779B9 + _scramble(seed & mask)) & mask)
    noise = (bits & 0xFF) + ((bits >> 8) & 0xFF) + ((bits >> 16) & 0xFF) + (bits >> 24) - 510
    noisy = scores + factor * noise.to(scores.dtype).view(1, *scores.shape[1:])
    noisy = noisy.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    # A family smaller than the largest repeats its first expert, which changes no maximum.
    members = family_members(scores.shape[1], num_selected, device=scores.device)
    best = noisy[:, members].max(dim=2, keepdim=True).indices
    experts = members[None, :, :, None].expand(len(scores), -1, -1, scores.shape[2]).gather(2, best)
    return experts[:, :, 0].to(torch.int32).contiguous()


def _native_sample(scores: torch.Tensor, num_selected: int, seed: torch.Tensor, factor: float) -> torch.Tensor:
    library = library_for(scores)
    if library is None:
        return _dense_sample(scores, num_selected, seed, factor)
    scores = scores.contiguous()
    _, num_experts, num_pixels = scores.shape
    indices = torch.empty(1, num_selected, num_pixels, dtype=torch.int32)
    found = ctypes.c_int64(0)
    library.call(
        "smoe_sample_families",
        *(scores, *(ctypes.c_int64(size) for size in (num_experts, num_selected, num_pixels))),
        *(seed, ctypes.c_float(factor), indices, ctypes.byref(found), num_threads()),
    )
    if found.value:
        refuse_nonfinite(scores)
    return indices


def _fake_sample(scores: torch.Tensor, num_selected: int, seed: torch.Tensor, factor: float) -> torch.Tensor:
    del seed, factor
    return scores.new_empty((scores.shape[0], num_selected, scores.shape[2]), dtype=torch.int32)


register_operator(
    "sample_families(Tensor scores, int num_selected, Tensor seed, float factor) -> Tensor",
    dense=_dense_sample,
    native=_native_sample,
    fake=_fake_sample,
)


def family_gradient(
    scores: torch.Tensor,
    products: torch.Tensor,
    num_families: int,
    temperature: float = 1.0,
    *,
    is_relative: bool = False,
) -> torch.Tensor:
    """The gradient at the scores.

    Args:
        scores: `(1, X, P)`.
        products: D of each expert, `(1, X, P)`, up to a number for each family and pixel.
        num_families: E.
        temperature: Temperature of the softmax.
        is_relative: Divide D less the mean of its family by the root mean square of that over all experts and pixels,
            so that neither the scale of the loss nor that of the data has an effect. An optimiser with a threshold in
            the units of the gradient, as the epsilon of Adam is, would stop the gate where errors are small.

    Returns:
        `(1, X, P)`.
    """
    num_experts = scores.shape[1]
    # Experts as (E, K): views where all families have one size; otherwise smaller ones are padded.
    places = None if num_experts % num_families == 0 else _places(num_experts, num_families, scores.device)
    logits = _by_family(scores[0] / temperature, num_families, places, -torch.inf)
    products = _by_family(products[0].to(scores.dtype), num_families, places, 0.0)
    if is_relative:
        if places is None:
            products = products - products.mean(dim=1, keepdim=True)
        else:
            is_member = logits > -torch.inf
            products = products - products.sum(dim=1, keepdim=True) / is_member.sum(dim=1, keepdim=True)
            products = torch.where(is_member, products, 0.0)
        products = _in_units_of_its_spread(products, scores[0].numel())
    probability = logits.softmax(dim=1)
    mean = (probability * products).sum(dim=1, keepdim=True)
    gradient = (products - mean).mul_(probability).flatten(0, 1)
    gradient = gradient if temperature == 1.0 else gradient / temperature
    return (gradient if places is None else gradient[places])[None]


def _places(num_experts: int, num_families: int, device: torch.device) -> torch.Tensor:
    """Place of each expert among families that are padded to the size of the largest, `(X,)`."""
    size, larger = divmod(num_experts, num_families)
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


def _in_units_of_its_spread(values: torch.Tensor, count: int) -> torch.Tensor:
    # In float64, because squares of small errors would be 0.
    norm = torch.linalg.vector_norm(values, dtype=torch.float64)
    spread = (norm / math.sqrt(max(1, count))).to(values.dtype)
    # Values that are not finite stay so, and are counted by the layer.
    return torch.where(spread == 0.0, 0.0, values / spread)


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
