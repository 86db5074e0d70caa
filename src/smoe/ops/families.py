"""Families of experts, and their selection with noise."""

from __future__ import annotations

import ctypes
import math

import torch

from smoe.ops.native.library import library_for, num_threads
from smoe.ops.registration import register_operator
from smoe.ops.top_experts import family_members, refuse_nonfinite
from smoe.ops.triton.availability import why_not_for

# Standard deviation of the sum of four bytes.
BYTES_STD = math.sqrt(4 * (256**2 - 1) / 12)


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
    return torch.ops.smoe.sample_families(scores.detach(), num_selected, seed, noise / BYTES_STD)


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


def _cuda_sample(scores: torch.Tensor, num_selected: int, seed: torch.Tensor, factor: float) -> torch.Tensor:
    if why_not_for(scores) is not None:
        return _dense_sample(scores, num_selected, seed, factor)
    from smoe.ops.triton.family_experts import triton_sample_families

    return triton_sample_families(scores, num_selected, seed, factor)


def _fake_sample(scores: torch.Tensor, num_selected: int, seed: torch.Tensor, factor: float) -> torch.Tensor:
    del seed, factor
    return scores.new_empty((scores.shape[0], num_selected, scores.shape[2]), dtype=torch.int32)


register_operator(
    "sample_families(Tensor scores, int num_selected, Tensor seed, float factor) -> Tensor",
    dense=_dense_sample,
    native=_native_sample,
    cuda=_cuda_sample,
    fake=_fake_sample,
)
