"""Families of experts: selection with noise, and the straight-through gradient.

A family is a softmax over its candidates of which one alone is computed in forward. In backward, the score of candidate
k receives the gradient that it would have if the softmax mixed the outputs, taken where the selected experts serve:

    pi_k (D_k - sum_j pi_j D_j) / temperature,  D_k = sum over samples and outputs of error * output of candidate k.

Adding the same number to all D of a family changes nothing. Two things differ from the plain formula, both because an
optimiser follows the gradient:

- D is divided, in each family and pixel, by its largest deviation from the mean. What is left says which candidates are
  better, not how much the loss depends on the pixel. The scale of loss and data has no effect, and rare large errors do
  not hide the many small ones.
- pi is mixed with a share `floor` of the uniform distribution. A pixel that is certain and wrong can still change.
"""

from __future__ import annotations

import ctypes

import torch

from smoe.ops.native.library import library_for, num_threads
from smoe.ops.registration import register_operator
from smoe.ops.top_experts import family_members, refuse_nonfinite


def family_sizes(num_experts: int, num_families: int) -> list[int]:
    """Number of experts in each family: near-equal, the larger ones first."""
    size, larger = divmod(num_experts, num_families)
    return [size + (family < larger) for family in range(num_families)]


def sample_families(scores: torch.Tensor, num_selected: int, seed: torch.Tensor, width: float) -> torch.Tensor:
    """Selects the best expert of each family after noise was added to the scores.

    Where an expert leads its family by `width` or more, it is selected for certain.

    Args:
        scores: Scores `(1, X, P)`.
        num_selected: E, the number of families.
        seed: Seed of the noise, an int64 scalar on the device of the scores; it is read modulo 2^32.
        width: Width of the noise, which is uniform in [0, width) and independent for each expert and pixel.

    Returns:
        Expert numbers `(1, E, P)`, int32.
    """
    return torch.ops.smoe.sample_families(scores.detach(), num_selected, seed, width)


def _scramble(bits: torch.Tensor) -> torch.Tensor:
    """A bijection of 32 bits, held in int64, whose outputs pass as random (lowbias32)."""
    mask = 0xFFFFFFFF
    bits = bits ^ (bits >> 16)
    bits = (bits * 0x7FEB352D) & mask
    bits = bits ^ (bits >> 15)
    bits = (bits * 0x846CA68B) & mask
    return bits ^ (bits >> 16)


def _dense_sample(scores: torch.Tensor, num_selected: int, seed: torch.Tensor, width: float) -> torch.Tensor:
    if scores.device.type == "cpu" and not torch.compiler.is_compiling():
        refuse_nonfinite(scores)
    mask = 0xFFFFFFFF
    place = torch.arange(scores.shape[1] * scores.shape[2], device=scores.device) & mask
    bits = _scramble((place * 0x9E3779B9 + _scramble(seed & mask)) & mask)
    noise = (bits >> 8).to(scores.dtype) * 2.0**-24
    noisy = scores + width * noise.view(1, *scores.shape[1:])
    noisy = noisy.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    # A family smaller than the largest repeats its first expert, which changes no maximum.
    members = family_members(scores.shape[1], num_selected, device=scores.device)
    best = noisy[:, members].max(dim=2, keepdim=True).indices
    experts = members[None, :, :, None].expand(len(scores), -1, -1, scores.shape[2]).gather(2, best)
    return experts[:, :, 0].to(torch.int32).contiguous()


def _native_sample(scores: torch.Tensor, num_selected: int, seed: torch.Tensor, width: float) -> torch.Tensor:
    library = library_for(scores)
    if library is None:
        return _dense_sample(scores, num_selected, seed, width)
    scores = scores.contiguous()
    _, num_experts, num_pixels = scores.shape
    indices = torch.empty(1, num_selected, num_pixels, dtype=torch.int32)
    found = ctypes.c_int64(0)
    library.call(
        "smoe_sample_families",
        *(scores, *(ctypes.c_int64(size) for size in (num_experts, num_selected, num_pixels))),
        *(seed, ctypes.c_float(width), indices, ctypes.byref(found), num_threads()),
    )
    if found.value:
        refuse_nonfinite(scores)
    return indices


def _fake_sample(scores: torch.Tensor, num_selected: int, seed: torch.Tensor, width: float) -> torch.Tensor:
    del seed, width
    return scores.new_empty((scores.shape[0], num_selected, scores.shape[2]), dtype=torch.int32)


register_operator(
    "sample_families(Tensor scores, int num_selected, Tensor seed, float width) -> Tensor",
    dense=_dense_sample,
    native=_native_sample,
    fake=_fake_sample,
)


def family_gradient(
    scores: torch.Tensor,
    products: torch.Tensor,
    num_families: int,
    temperature: float = 1.0,
    floor: float = 0.0,
) -> torch.Tensor:
    """The gradient at the scores.

    Args:
        scores: `(1, X, P)`.
        products: D of each expert, `(1, X, P)`, up to a number for each family and pixel.
        num_families: E.
        temperature: Temperature of the softmax.
        floor: Share of the uniform distribution in the probabilities, in [0, 1].

    Returns:
        `(1, X, P)`.
    """
    by_family, scores, products, sizes = _pad(num_families, scores[0], products[0].to(scores.dtype))
    probability = (scores / temperature).softmax(dim=1)
    if floor > 0.0:
        uniform = torch.where(scores == -torch.inf, 0.0, floor / sizes)
        probability = (1.0 - floor) * probability + uniform
    mean = (probability * products).sum(dim=1, keepdim=True)
    gradient = (probability * (products - mean) / temperature).flatten(0, 1)
    return (gradient if by_family is None else gradient[by_family])[None]


def relative_products(products: torch.Tensor, num_families: int) -> torch.Tensor:
    """Products less the mean of their family, over the largest deviation from it; 0 where all are equal.

    Args:
        products: `(1, X, P)`.
        num_families: E.
    """
    by_family, _, values, sizes = _pad(num_families, products[0], products[0])
    is_member = None
    if by_family is not None:
        is_member = torch.zeros(values.shape[0] * values.shape[1], 1, dtype=torch.bool, device=values.device)
        is_member = is_member.index_fill_(0, by_family, True).view(*values.shape[:2], 1)
    deviation = values - values.sum(dim=1, keepdim=True) / sizes
    if is_member is not None:
        deviation = torch.where(is_member, deviation, 0.0)
    largest = deviation.abs().amax(dim=1, keepdim=True)
    relative = torch.where(largest > 0.0, deviation / largest, 0.0).flatten(0, 1)
    return (relative if by_family is None else relative[by_family])[None]


def _pad(num_families: int, scores: torch.Tensor, products: torch.Tensor):
    """Scores and products `(X, P)` as `(E, K, P)`, the place of each expert in them or None, and sizes `(E, 1, 1)`."""
    num_experts = scores.shape[0]
    sizes = torch.tensor(family_sizes(num_experts, num_families), device=scores.device).view(-1, 1, 1)
    if num_experts % num_families == 0:
        return None, *(values.unflatten(0, (num_families, -1)) for values in (scores, products)), sizes
    largest = -(-num_experts // num_families)
    places = torch.cat(
        [torch.arange(size) + family * largest for family, size in enumerate(family_sizes(num_experts, num_families))]
    ).to(scores.device)
    padded = [
        torch.full((num_families * largest, scores.shape[1]), fill, dtype=values.dtype, device=values.device)
        .index_copy_(0, places, values)
        .unflatten(0, (num_families, -1))
        for fill, values in ((-torch.inf, scores), (0.0, products))
    ]
    return places, *padded, sizes


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
