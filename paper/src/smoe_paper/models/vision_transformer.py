"""A vision transformer from field to field, and V-MoE: the same with experts (paper section 3.1, baselines)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from smoe_paper.baselines.patch_moe import FeedForward, PatchMoE


class VisionTransformer(nn.Module):
    """`(B, in_channels, H, W)` to `(B, out_channels, H, W)`, by attention between the patches of the grid.

    Each patch becomes a token by a linear map; a fixed position embedding is added; after the blocks and a last layer
    norm, another linear map makes the pixels of the patch.

    Args:
        spatial_shape: Rows and columns of the grid, multiples of `patch_size`.
        width: Width of the tokens, a multiple of 4 and of `num_heads`.
        num_experts: Number of experts in every block; None for one feed-forward network in every block.
        capacity_factor: Capacity factor of the experts, see `PatchMoE`; each sample is a group of its own.
    """

    position: torch.Tensor

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        spatial_shape: tuple[int, int],
        *,
        patch_size: int = 4,
        width: int = 128,
        num_heads: int = 4,
        depth: int = 1,
        hidden: int = 512,
        num_experts: int | None = None,
        num_selected: int = 1,
        capacity_factor: float = 1.05,
    ) -> None:
        super().__init__()
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.spatial_shape = spatial_shape
        if self.spatial_shape[0] % patch_size or self.spatial_shape[1] % patch_size:
            raise ValueError(
                f"spatial_shape must be multiples of patch_size, got {self.spatial_shape} and patches of {patch_size}"
            )
        self.patch_size = patch_size
        rows, columns = (size // patch_size for size in self.spatial_shape)
        self.register_buffer("position", sine_cosine_position(rows, columns, width), persistent=False)
        self.embed = nn.Linear(in_channels * patch_size**2, width)
        blocks: list[nn.Module] = []
        for _ in range(depth):
            feed_forward = (
                FeedForward(width, hidden)
                if num_experts is None
                else PatchMoE(width, hidden, num_experts, num_selected, capacity_factor=capacity_factor)
            )
            blocks.append(TransformerBlock(width, num_heads, feed_forward))
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, out_channels * patch_size**2)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        expected = (self.in_channels, *self.spatial_shape)
        if input.ndim != 4 or tuple(input.shape[1:]) != expected:
            raise ValueError(
                f"the transformer was made for inputs of (B, {', '.join(map(str, expected))}), "
                f"got shape {tuple(input.shape)}"
            )
        # Patches row after row, the pixels of a channel together.
        patches = F.pixel_unshuffle(input, self.patch_size)
        tokens = self.embed(patches.flatten(2).transpose(1, 2)) + self.position
        output = self.head(self.norm(self.blocks(tokens)))
        return F.pixel_shuffle(output.transpose(1, 2).unflatten(2, patches.shape[2:]), self.patch_size)


class TransformerBlock(nn.Module):
    """Attention and then a feed-forward layer, each after a layer norm and in a residual branch.

    Args:
        feed_forward: Module from tokens `(B, N, D)` to `(B, N, D)`.
    """

    def __init__(self, width: int, num_heads: int, feed_forward: nn.Module) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = SelfAttention(width, num_heads)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.feed_forward = feed_forward

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        tokens = tokens + self.attention(self.attention_norm(tokens))
        return tokens + self.feed_forward(self.feed_forward_norm(tokens))


class SelfAttention(nn.Module):
    """Multi-head attention of every token `(B, N, D)` to all tokens of its sample, with biases."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.project_in = nn.Linear(width, 3 * width)
        self.project_out = nn.Linear(width, width)
        # Queries, keys and values are three maps that share one product: each starts as a map of its own.
        for weight in (*self.project_in.weight.detach().split(width), self.project_out.weight):
            nn.init.xavier_uniform_(weight)
        for linear in (self.project_in, self.project_out):
            nn.init.zeros_(linear.bias)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        heads = self.project_in(tokens).unflatten(2, (3, self.num_heads, -1))
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value)
        return self.project_out(attended.transpose(1, 2).flatten(2))


def sine_cosine_position(rows: int, columns: int, width: int) -> torch.Tensor:
    """Fixed embedding of the places of a grid, row after row.

    The first half of the channels depends on the row only, the second on the column only; each half holds the sines and
    then the cosines of `place / 10000 ** (4 i / width)`, i from 0 to `width / 4 - 1`: `(rows * columns, width)`.
    """
    # float64, because the sine of a large float32 angle loses digits.
    frequency = 10000.0 ** -(torch.arange(width // 4, dtype=torch.float64) / (width // 4))

    def waves(size: int) -> torch.Tensor:
        angles = torch.outer(torch.arange(size, dtype=torch.float64), frequency)
        return torch.cat([angles.sin(), angles.cos()], dim=1)

    of_rows = waves(rows).unsqueeze(1).expand(-1, columns, -1)
    of_columns = waves(columns).expand(rows, -1, -1)
    return torch.cat([of_rows, of_columns], dim=2).flatten(0, 1).to(torch.get_default_dtype())
