"""The best expert of each family on a GPU, with or without noise on the scores.

The noise is that of `smoe.ops._families`: the sum of the four bytes of a hash of the seed, the expert and the pixel. It
is rounded as PyTorch's operations round, so that the selection equals the dense one at every pixel.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from smoe.ops.triton.blocks import block_and_sample
from smoe.ops.triton.launch import ceil_div, launch

PIXELS_PER_PROGRAM = 128


@triton.jit
def scramble(bits):
    """A bijection of 32 bits whose outputs pass as random (lowbias32)."""
    bits = bits ^ (bits >> 16)
    bits = bits * 0x7FEB352D
    bits = bits ^ (bits >> 15)
    bits = bits * 0x846CA68B
    return bits ^ (bits >> 16)


@triton.jit
def sum_of_bytes(bits):
    """The sum of the four bytes less its mean, between -510 and 510."""
    total = (bits & 0xFF) + ((bits >> 8) & 0xFF) + ((bits >> 16) & 0xFF) + (bits >> 24)
    return total.to(tl.int32) - 510


@triton.jit
def family_kernel(
    scores,
    indices,
    seed,
    factor,
    num_experts,
    num_families,
    num_pixels,
    HAS_NOISE: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """Writes the best expert of one family to `indices[sample, family, pixel]`; the lower number wins a tie."""
    dtype: tl.constexpr = scores.dtype.element_ty
    pixel_blocks = tl.cdiv(num_pixels, PIXELS)
    block, sample = block_and_sample(pixel_blocks)
    pixels = block * PIXELS + tl.arange(0, PIXELS)
    family = tl.program_id(1)
    size = num_experts // num_families
    larger = num_experts % num_families
    first = family * size + tl.minimum(family, larger)
    last = first + size + tl.where(family < larger, 1, 0)
    row = scores + sample * num_experts * num_pixels
    best = tl.full((PIXELS,), float("-inf"), dtype=dtype)
    chosen = tl.zeros((PIXELS,), dtype=tl.int32) + first
    if HAS_NOISE:
        # As blocks: the interpreter warns of an overflow in products of scalars, which is intended here.
        start = scramble(tl.zeros((PIXELS,), dtype=tl.uint32) + tl.load(seed).to(tl.uint32))
    for expert in range(first, last):
        score = tl.load(row + expert * num_pixels + pixels, mask=pixels < num_pixels, other=float("-inf"))
        if HAS_NOISE:
            place = (expert * num_pixels + pixels).to(tl.uint32)
            noise = sum_of_bytes(scramble(place * 0x9E3779B9 + start)).to(dtype)
            noise = (noise.to(tl.float32) * factor).to(dtype)
            score = (score.to(tl.float32) + noise.to(tl.float32)).to(dtype)
        is_better = score > best  # false for a NaN
        best = tl.where(is_better, score, best)
        chosen = tl.where(is_better, expert, chosen)
    tl.store(indices + (sample * num_families + family) * num_pixels + pixels, chosen, mask=pixels < num_pixels)


def triton_family_experts(scores: torch.Tensor, num_selected: int) -> torch.Tensor:
    """The best expert of each of E families `(S, E, P)` int32, from scores `(S, X, P)`."""
    return _select(scores, num_selected, None, 0.0)


def triton_sample_families(scores: torch.Tensor, num_selected: int, seed: torch.Tensor, factor: float) -> torch.Tensor:
    """As the operator `smoe::sample_families`, from scores `(1, X, P)` in float32 or half precision."""
    return _select(scores, num_selected, seed, factor)


def _select(scores: torch.Tensor, num_selected: int, seed: torch.Tensor | None, factor: float) -> torch.Tensor:
    scores = scores.contiguous()
    num_samples, num_experts, num_pixels = scores.shape
    indices = torch.empty(num_samples, num_selected, num_pixels, dtype=torch.int32, device=scores.device)
    if indices.numel():
        launch(
            *(family_kernel, (ceil_div(num_pixels, PIXELS_PER_PROGRAM) * num_samples, num_selected), scores, indices),
            *(indices if seed is None else seed, factor, num_experts, num_selected, num_pixels),
            HAS_NOISE=seed is not None,
            PIXELS=PIXELS_PER_PROGRAM,
            # Without fused multiply-adds, the noise is added as PyTorch's separate operations do.
            enable_fp_fusion=False,
        )
    return indices
