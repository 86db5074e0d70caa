"""Factorised tensor routing: the scores of a pixel follow from a few learned numbers of its own.

A table of scores has X numbers for each pixel, which learn apart from each other. Here a pixel has an embedding of a
few numbers and each expert a key; the score is their product. A pixel then learns from all pixels like it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import nn

from smoe.nn.gates.banded import BandedGate
from smoe.nn.gates.groups import group_membership, group_of_expert
from smoe.nn.gates.random_start import START_STD, check_scale, check_start, check_strength, draw_start
from smoe.nn.gates.scaled_gradient import scale_gradient
from smoe.nn.grid_checks import check_grid, check_positive
from smoe.nn.host_noise import host_normal
from smoe.nn.sharded_parameters import change_parameter, gather, is_sharded
from smoe.nn.shared_module import SharedModule, save_once
from smoe.ops.native.library import has_library
from smoe.ops.routing import Routing, nan_where_nonfinite, refuses_nonfinite
from smoe.ops.sample_factorised import sample_factorised
from smoe.options import GateInit, Normalization, Order

# Change of a key that is copied, relative to its size.
_KEY_CHANGE = 0.3


class PixelEmbedding(SharedModule):
    """A few learned numbers for each pixel; gates of one grid may share them.

    Args:
        rank: Numbers for each pixel.
        spatial_shape: Sizes of the grid.
        init: `uniform` starts at 0; `kaiming` with independent random numbers; `smooth` with random fields.
        correlation_length: Correlation length of the smooth fields in pixels; an eighth of the shorter side if None.
        device: Device of the numbers.
        dtype: Dtype of the numbers.
    """

    def __init__(
        self,
        rank: int,
        spatial_shape: tuple[int, ...],
        *,
        init: GateInit = "uniform",
        correlation_length: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive(rank=rank)
        check_start(init, correlation_length)
        self.init: GateInit = init
        self.correlation_length = correlation_length
        self.values = nn.Parameter(torch.empty(rank, *check_grid(spatial_shape), device=device, dtype=dtype))
        self.reset_parameters()

    @property
    def spatial_shape(self) -> tuple[int, ...]:
        """Sizes of the grid."""
        return tuple(self.values.shape[1:])

    def reset_parameters(self) -> None:
        """Draws the numbers anew, of standard deviation 1 unless they start at 0."""
        draw_start(self.values, self.init, self.correlation_length)

    def extra_repr(self) -> str:
        """The numbers that `repr` shows."""
        return f"rank={len(self.values)}, spatial_shape={self.spatial_shape}"


class FactorisedGate(BandedGate):
    """Scores `scale * keys . embedding`, shared by all samples.

    Args:
        num_experts: X, the number of experts in the bank.
        num_selected: E, the number of experts selected at each pixel.
        spatial_shape: Sizes of the layer's output grid, such as rows and columns, or a number of nodes.
        rank: Numbers for each pixel and expert.
        scale: Factor of the scores. An optimiser moves all parameters alike; a larger scale lets the gate change
            faster beside the experts.
        init: `uniform`: every pixel takes the first expert of each family, so that a layer starts as a convolution.
            `kaiming`: independent random numbers. `smooth`: random fields, so that neighbouring pixels start alike.
        correlation_length: Correlation length of the smooth fields in pixels; an eighth of the shorter side if None.
        embedding: Embedding of the pixels, shared with another gate of the same grid; `rank`, `init` and
            `correlation_length` are then those of the embedding.
        order: `families`, or the paper's selections `score` and `index`.
        normalization: `none`, `softmax`, `abs` or `abs_softmax`.
        device: Device of the parameters.
        dtype: Dtype of the parameters.
    """

    def __init__(
        self,
        num_experts: int,
        num_selected: int,
        spatial_shape: tuple[int, ...] | None = None,
        *,
        rank: int = 8,
        scale: float = 10.0,
        init: GateInit = "kaiming",
        correlation_length: float | None = None,
        embedding: PixelEmbedding | None = None,
        order: Order = "families",
        normalization: Normalization = "none",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_experts, num_selected, order=order, normalization=normalization)
        check_scale(scale)
        if embedding is None:
            if spatial_shape is None:
                raise ValueError("give spatial_shape, the sizes of the output grid, or an embedding")
            embedding = PixelEmbedding(
                rank, spatial_shape, init=init, correlation_length=correlation_length, device=device, dtype=dtype
            )
            with torch.no_grad():
                embedding.values.mul_(START_STD / scale)
        elif spatial_shape is not None and tuple(spatial_shape) != embedding.spatial_shape:
            raise ValueError(
                f"the embedding was made for a grid of {embedding.spatial_shape}, but spatial_shape is "
                f"{tuple(spatial_shape)}"
            )
        self.scale = scale
        self.embedding = embedding
        save_once(self, "embedding")
        self.keys = nn.Parameter(torch.empty(num_experts, len(embedding.values), device=device, dtype=dtype))
        self.reset_keys()

    @classmethod
    def from_prior(
        cls, groups: torch.Tensor, num_experts: int, num_selected: int, strength: float = 2.0, **options
    ) -> FactorisedGate:
        """A gate that starts with each group's pixels preferring that group's share of the experts.

        It is an ordinary gate afterwards and can learn away from the prior.

        Args:
            groups: Map `(*grid)` of group numbers, or of a fraction in [0, 1] such as land.
            num_experts: X, the number of experts in the bank.
            num_selected: E, the number of experts selected at each pixel.
            strength: Difference of the scores of a pixel's own share and of others, in standard deviations of the
                random start.
            **options: Further arguments of `FactorisedGate`.
        """
        check_strength(strength)
        groups = torch.as_tensor(groups)
        membership = group_membership(groups)
        gate = cls(num_experts, num_selected, tuple(groups.shape), **options)
        rank = gate.keys.shape[1]
        if rank < len(membership):
            raise ValueError(f"{len(membership)} groups need a rank of at least {len(membership)}, got {rank}")
        of_expert = group_of_expert(num_experts, len(membership), num_selected if gate.order == "families" else 1)
        with torch.no_grad():
            # A number of the embedding for each group, to which the keys of its experts answer.
            gate.embedding.values[: len(membership)] = (strength * START_STD / gate.scale) * membership.to(gate.keys)
            gate.keys[:, : len(membership)] = 0.0
            gate.keys[torch.arange(num_experts), of_expert] = 1.0
        return gate

    @property
    def spatial_shape(self) -> tuple[int, ...]:
        """Sizes of the grid the gate was made for."""
        return self.embedding.spatial_shape

    @property
    def gradient_gain(self) -> float:
        """That of the embedding, with keys of their size at the start."""
        return 1.0 / self.scale

    def reset_keys(self) -> None:
        """Draws the keys anew."""
        nn.init.normal_(self.keys, std=1.0 / math.sqrt(self.keys.shape[1]))

    @torch.no_grad()
    def copy_keys(self, sources: torch.Tensor, generator: torch.Generator) -> None:
        """Gives experts the keys of others, slightly changed, so that the pixels of each are divided between them.

        Args:
            sources: For each expert the one whose key it takes, `(X,)`; its own number leaves it as it is.
            generator: Generator of the change, on the CPU.
        """

        def copy_rows(whole: torch.Tensor) -> None:
            # `.data`: another graph may wait for its backward pass with these keys.
            keys = whole.data
            copied = keys[sources]
            change = host_normal(keys.shape, generator, keys) * copied.square().mean(dim=1, keepdim=True).sqrt()
            is_copy = (sources != torch.arange(len(keys), device=keys.device))[:, None]
            keys.copy_(torch.where(is_copy, copied + _KEY_CHANGE * change, keys))

        change_parameter(self, "keys", copy_rows)

    def row_parameters(self) -> tuple[nn.Parameter, ...]:
        """The keys."""
        return (self.keys,)

    def common_parameters(self) -> tuple[torch.Tensor, ...]:
        """The embedding."""
        return (gather(self.embedding.values).to(self.keys.dtype),)

    def named_children(self) -> Iterator[tuple[str, nn.Module]]:
        """Without an embedding that FSDP has sharded with another layer, to whose unit it belongs."""
        for name, child in super().named_children():
            if child is not self.embedding or is_sharded(self) or not is_sharded(child):
                yield name, child

    def scores_of(self, rows: tuple[torch.Tensor, ...], common: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """The products of keys and embedding."""
        (keys,), (values,) = rows, common
        keys = scale_gradient(keys, 1.0 / (self.scale**2 * self.num_pixels))
        values = scale_gradient(values, 1.0 / self.scale**2)
        return (self.scale * keys) @ values.flatten(1)

    @property
    def can_draw(self) -> bool:
        """Whether `draw` is better than ranking the scores: in bands, or where a kernel does both at once."""
        return self._has_kernel or self.works_in_bands

    @property
    def _has_kernel(self) -> bool:
        is_plain_float = self.keys.device.type == "cpu" and self.keys.dtype == torch.float32
        return self.selects_families and is_plain_float and has_library()

    def draw(self, seed: torch.Tensor, noise: float) -> Routing:
        """Selects an expert of each family by the scores with noise, without storing the scores.

        Args:
            seed: Seed of the noise, an int64 scalar.
            noise: Standard deviation of the noise, in units of the scores.

        Returns:
            A routing with empty scores.
        """
        if not self._has_kernel:
            return super().draw(seed, noise)
        # Detached, and not under `no_grad`: after an error, an exported program would leave gradients switched off.
        keys, embedding = self.scale * self.keys.detach(), self.common_parameters()[0].detach().flatten(1)
        indices = sample_factorised(keys, embedding, self.num_selected, seed, noise)
        nothing = embedding.new_empty(1, 0, embedding.shape[1])
        unranked = None
        if not refuses_nonfinite(keys.device):
            unranked = nan_where_nonfinite(embedding[None]) + nan_where_nonfinite(keys.view(1, -1, 1))
        return Routing(indices, nothing, nothing, nothing, unranked=unranked)

    def extra_repr(self) -> str:
        """The numbers that `repr` shows."""
        return f"{super().extra_repr()}, rank={self.keys.shape[1]}, scale={self.scale:g}"
