"""Ranking on a GPU: the rank of an expert is the number of experts before it, counted.

X comparisons for each expert and pixel are little work for a GPU, need no sorting network and no keys, and put ties in
the order of the definition.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from smoe.ops.triton.blocks import block_and_sample
from smoe.ops.triton.family_experts import triton_family_experts
from smoe.ops.triton.launch import ceil_div, launch

EXPERTS_PER_PROGRAM = 32
PIXELS_PER_PROGRAM = 32


@triton.jit
def rank_kernel(scores, indices, num_experts, num_selected, num_pixels, EXPERTS: tl.constexpr, PIXELS: tl.constexpr):
    """Writes the experts of one block whose rank is below `num_selected` to `indices[sample, rank, pixel]`."""
    pixel_blocks = tl.cdiv(num_pixels, PIXELS)
    block, sample = block_and_sample(pixel_blocks)
    pixels = block * PIXELS + tl.arange(0, PIXELS)
    experts = tl.program_id(1) * EXPERTS + tl.arange(0, EXPERTS)
    row = scores + sample * num_experts * num_pixels
    is_here = (experts < num_experts)[:, None] & (pixels < num_pixels)[None, :]
    own = tl.load(row + experts[:, None] * num_pixels + pixels[None, :], mask=is_here, other=float("-inf"))
    own = tl.where(own == own, own, float("-inf"))  # a NaN ranks last
    rank = tl.zeros((EXPERTS, PIXELS), dtype=tl.int32)
    for other in range(num_experts):
        score = tl.load(row + other * num_pixels + pixels, mask=pixels < num_pixels, other=float("-inf"))
        score = tl.where(score == score, score, float("-inf"))[None, :]
        is_before = (score > own) | ((score == own) & (other < experts)[:, None])
        rank += is_before.to(tl.int32)
    tl.store(
        indices + (sample * num_selected + rank) * num_pixels + pixels[None, :],
        tl.broadcast_to(experts[:, None], (EXPERTS, PIXELS)),
        mask=is_here & (rank < num_selected),
    )


def triton_top_experts(scores: torch.Tensor, num_selected: int) -> torch.Tensor:
    """The experts with the highest scores `(S, E, P)` int32, the best first, from scores `(S, X, P)`."""
    if num_selected == 1:
        return triton_family_experts(scores, 1)
    scores = scores.contiguous()
    num_samples, num_experts, num_pixels = scores.shape
    indices = torch.empty(num_samples, num_selected, num_pixels, dtype=torch.int32, device=scores.device)
    if indices.numel():
        grid = (ceil_div(num_pixels, PIXELS_PER_PROGRAM) * num_samples, ceil_div(num_experts, EXPERTS_PER_PROGRAM))
        blocks = {"EXPERTS": EXPERTS_PER_PROGRAM, "PIXELS": PIXELS_PER_PROGRAM}
        launch(rank_kernel, grid, scores, indices, num_experts, num_selected, num_pixels, **blocks)
    return indices
