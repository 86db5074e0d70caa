"""Families of experts, and their selection with noise."""

from __future__ import annotations

import ctypes
import math

import torch

from smoe.ops.native.library import library_for, num_threads
from smoe.ops.registration import call_operator, has_transforms, register_operator
from smoe.ops.top_experts import family_members, refuse_nonfinite
from smoe.ops.triton.availability import why_not_for

ALL_FAMILIES = slice(None)
"""Where work can be done on some families at a time."""

# Numbers of 32 bits, held in int64.
_MASK = 0xFFFFFFFF
# Factor of a place in the hash of the noise, and the factors of the bijection that makes it pass as random, with their
# inverses modulo 2^32.
_PLACE_FACTOR = 0x9E3779B9
_FACTORS = (0x7FEB352D, 0x846CA68B)
_INVERSES = tuple(pow(factor, -1, 1 << 32) for factor in _FACTORS)
# Standard deviation of the sum of four bytes.
BYTES_STD = math.sqrt(4 * (256**2 - 1) / 12)


def family_sizes(num_experts: int, num_families: int) -> list[int]:
    """Number of experts in each family: near-equal, the larger ones first."""
    size, larger = divmod(num_experts, num_families)
    return [size + (family < larger) for family in range(num_families)]


def experts_of(num_experts: int, num_families: int, families: slice) -> slice:
    """The experts of consecutive families, which are consecutive too."""
    sizes = family_sizes(num_experts, num_families)
    first = sum(sizes[: families.indices(num_families)[0]])
    return slice(first, first + sum(sizes[families]))


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
    return call_operator(_sample, scores.detach(), num_selected, seed, noise / BYTES_STD)


def shifted_seed(seed: torch.Tensor, place: int) -> torch.Tensor:
    """The seed whose noise begins with the number that `seed` has at a place: for work on a part of the experts.

    Args:
        seed: Seed of the noise of all experts, an int64 scalar.
        place: Number of the first expert of the part times P.
    """
    return _unscramble((_scramble(seed & _MASK) + (place * _PLACE_FACTOR & _MASK)) & _MASK)


def _scramble(bits: torch.Tensor) -> torch.Tensor:
    """A bijection of 32 bits, held in int64, whose outputs pass as random (lowbias32)."""
    bits = bits ^ (bits >> 16)
    bits = (bits * _FACTORS[0]) & _MASK
    bits = bits ^ (bits >> 15)
    bits = (bits * _FACTORS[1]) & _MASK
    return bits ^ (bits >> 16)


def _unscramble(bits: torch.Tensor) -> torch.Tensor:
    """The inverse of `_scramble`."""
    bits = bits ^ (bits >> 16)
    bits = (bits * _INVERSES[1]) & _MASK
    bits = bits ^ (bits >> 15) ^ (bits >> 30)
    bits = (bits * _INVERSES[0]) & _MASK
    return bits ^ (bits >> 16)


def _dense_sample(scores: torch.Tensor, num_selected: int, seed: torch.Tensor, factor: float) -> torch.Tensor:
    if scores.device.type == "cpu" and not (torch.compiler.is_compiling() or has_transforms()):
        refuse_nonfinite(scores)
    place = torch.arange(scores.shape[1] * scores.shape[2], device=scores.device) & _MASK
    bits = _scramble((place * _PLACE_FACTOR + _scramble(seed & _MASK)) & _MASK)
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


def _cuda_sample(scores: torch.Tensor, num_selected: int, seed: torch.Tensor, factor: float) -> torch.Tensor:
    if why_not_for(scores) is not None:
        return _dense_sample(scores, num_selected, seed, factor)
    from smoe.ops.triton.family_experts import triton_sample_families

    return triton_sample_families(scores, num_selected, seed, factor)


def _fake_sample(scores: torch.Tensor, num_selected: int, seed: torch.Tensor, factor: float) -> torch.Tensor:
    del seed, factor
    return scores.new_empty((scores.shape[0], num_selected, scores.shape[2]), dtype=torch.int32)


_sample = register_operator(
    "sample_families(Tensor scores, int num_selected, Tensor seed, float factor) -> Tensor",
    dense=_dense_sample,
    native=_native_sample,
    cuda=_cuda_sample,
    fake=_fake_sample,
)
