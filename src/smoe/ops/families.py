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
    noise = sum((bits >> shift) & 0xFF for shift in (0, 8, 16, 24)) - 510
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
    size, larger = divmod(num_experts, num_families)
    expert = torch.arange(num_experts, device=scores.device)
    # The first `larger` families have one expert more.
    family_of = torch.where(expert < larger * (size + 1), expert // (size + 1), (expert - larger) // size)
    sizes = (size + (family_of < larger).to(scores.dtype))[:, None]

    def total(values: torch.Tensor) -> torch.Tensor:
        """Sums over the families of `(X, P)`, for each expert."""
        if num_experts % num_families == 0:
            by_family = values.unflatten(0, (num_families, -1))
            return by_family.sum(dim=1, keepdim=True).expand_as(by_family).flatten(0, 1)
        return values.new_zeros(num_families, values.shape[1]).index_add_(0, family_of, values)[family_of]

    deviation = products[0].to(scores.dtype)
    if is_relative:
        deviation = _in_units_of_its_spread(deviation - total(deviation) / sizes)
    # The difference to the largest score of all families of the pixel would underflow.
    logits = scores[0] / temperature
    members = family_members(num_experts, num_families, device=scores.device)
    largest = logits[members].amax(dim=1)[family_of]
    probability = (logits - largest).exp()
    probability = probability / total(probability)
    gradient = probability * (deviation - total(probability * deviation)) / temperature
    return gradient[None]


def _in_units_of_its_spread(values: torch.Tensor) -> torch.Tensor:
    # In float64, because squares of small errors would be 0.
    norm = torch.linalg.vector_norm(values, dtype=torch.float64)
    spread = (norm / math.sqrt(max(1, values.numel()))).to(values.dtype)
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
