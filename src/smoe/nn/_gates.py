"""Gates that do not look at their input: a table of scores, or products of keys and embeddings."""

from __future__ import annotations

import math
from typing import NamedTuple, Self

import torch
from torch import nn

from smoe.nn._gate import (
    START_STD,
    SpatialGate,
    check_grid,
    check_start,
    draw_start,
    expert_membership,
    group_membership,
    group_of_expert,
)
from smoe.nn._own_steps import SelfOptimizing
from smoe.nn._routed_layer import check_positive
from smoe.nn._shared_parameters import save_once
from smoe.ops._families import sample_factorised
from smoe.ops._operators import has_library, is_equal, is_observed
from smoe.ops._routing import Routing, nan_where_nonfinite, refuses_nonfinite
from smoe.options import GATE_INITS, GateInit, Order


class _GridGate(SpatialGate):
    """A gate of numbers for the pixels of a grid, which may start from a map."""

    @classmethod
    def from_prior(
        cls, groups: torch.Tensor, num_experts: int, num_selected: int, strength: float = 2.0, **options
    ) -> Self:
        """A gate that starts with each group's pixels preferring that group's share of the experts.

        It is an ordinary gate afterwards and can learn away from the prior.

        Args:
            groups: Map `(*grid)` of group numbers, or of a fraction in [0, 1] such as land. With 256 experts in one
                family and two groups, experts 0 to 127 serve group 0.
            num_experts: X, the number of experts in the bank.
            num_selected: E, the number of experts to select at each pixel.
            strength: Strength of the preference: of a `TensorGate` in units of the largest score of the random start,
                so that from 2 on a pixel's own share starts above all other experts; of a `FactorisedGate` in standard
                deviations of the start. Towards 0 the prior fades into the random start.
            **options: Further arguments of the gate.
        """
        if not strength >= 0.0:
            raise ValueError(f"strength must not be negative, got {strength}")
        groups = torch.as_tensor(groups)
        gate = cls(num_experts, num_selected, **{"spatial_shape": tuple(groups.shape), **options})
        with torch.no_grad():
            gate._prefer(groups, strength)
        return gate

    def _prefer(self, groups: torch.Tensor, strength: float) -> None:
        """Changes the start."""
        raise NotImplementedError


class TensorGate(_GridGate):
    """A learned tensor of scores `(X, *grid)`, shared by all samples.

    Args:
        num_experts: X, the number of experts in the bank.
        num_selected: E, the number of experts to select at each pixel.
        spatial_shape: Sizes of the layer's output grid, such as rows and columns, or a number of nodes.
        expert_channels: F, the number of outputs per expert; it sets the standard deviation of the initial scores.
        init: Start of the scores. `kaiming`: uniform within sqrt(3 X / (E F)). `paper`: uniform within 3 X / (E F), the
            bound that the paper prints. `smooth`: random fields of the same spread as `kaiming`, so that neighbouring
            pixels start with the same experts. `uniform`: all scores 0, so that ties select the first experts
            everywhere.
        correlation_length: Correlation length of the smooth fields, in pixels; an eighth of the shorter side if None.
        order: Order of the selected experts: `families`, `score` or `index`.
        device: Device of the scores.
        dtype: Dtype of the scores.
    """

    _step_size = 0.1

    def __init__(
        self,
        num_experts: int,
        num_selected: int,
        spatial_shape: tuple[int, ...],
        expert_channels: int = 1,
        *,
        init: GateInit = "kaiming",
        correlation_length: float | None = None,
        order: Order = "score",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_experts, num_selected, order=order)
        check_positive(expert_channels=expert_channels)
        check_start(init, correlation_length, GATE_INITS)
        self.expert_channels = expert_channels
        self.init: GateInit = init
        self.correlation_length = correlation_length
        self.scores = nn.Parameter(torch.empty(num_experts, *check_grid(spatial_shape), device=device, dtype=dtype))
        self.reset_parameters()

    def _prefer(self, groups: torch.Tensor, strength: float) -> None:
        membership = expert_membership(groups, self.num_experts, self.num_selected if self.order == "families" else 1)
        self.scores.add_(strength * self.scores.abs().max() * membership.to(self.scores))

    @property
    def spatial_shape(self) -> tuple[int, ...]:
        return tuple(self.scores.shape[1:])

    def reset_parameters(self) -> None:
        # Kaiming's, for a fan-in of E F / X.
        bound = math.sqrt(3.0 * self.num_experts / (self.num_selected * self.expert_channels))
        if self.init in ("uniform", "smooth"):
            draw_start(self.scores, self.init, self.correlation_length)
            # A uniform distribution within the bound has the standard deviation bound / sqrt(3).
            self.scores.data.mul_(bound / math.sqrt(3.0))
        else:
            bound = bound if self.init == "kaiming" else bound**2
            nn.init.uniform_(self.scores, -bound, bound)

    def raw_scores(self, input: torch.Tensor | None = None) -> torch.Tensor:
        del input
        return self.scores

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, spatial_shape={self.spatial_shape}"


class PixelEmbedding(SelfOptimizing):
    """A few learned numbers for each pixel; gates of one grid may share them.

    Args:
        rank: Numbers for each pixel.
        spatial_shape: Sizes of the grid.
        init: `uniform` starts at 0; `kaiming` with independent random numbers; `smooth` with random fields.
        correlation_length: Correlation length of the smooth fields in pixels; an eighth of the shorter side if None.
        device: Device of the numbers.
        dtype: Dtype of the numbers.
    """

    _longest = 0.6

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
        return tuple(self.values.shape[1:])

    def reset_parameters(self) -> None:
        """Draws new numbers, of standard deviation 1 unless they start at 0."""
        draw_start(self.values, self.init, self.correlation_length)

    def forward(self) -> torch.Tensor:
        """The numbers `(rank, *grid)`."""
        return self.values

    def extra_repr(self) -> str:
        return f"rank={len(self.values)}, spatial_shape={self.spatial_shape}"


class _Decision(NamedTuple):
    """A routing, and what it was decided by."""

    options: tuple[float | None, ...]
    numbers: tuple[torch.Tensor, ...]
    routing: Routing


class FactorisedGate(_GridGate):
    """Scores `scale * (keys @ embedding)`, shared by all samples.

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
        device: Device of the parameters.
        dtype: Dtype of the parameters.
    """

    _longest = 1.0
    _vector_axis = 1

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
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_experts, num_selected, order=order)
        if not 0.0 < scale < math.inf:
            raise ValueError(f"scale must be positive and finite, got {scale}")
        if embedding is None:
            if spatial_shape is None:
                raise ValueError("give spatial_shape, the sizes of the output grid, or an embedding")
            embedding = PixelEmbedding(
                rank, spatial_shape, init=init, correlation_length=correlation_length, device=device, dtype=dtype
            )
            with torch.no_grad():
                embedding.values.mul_(START_STD / scale)
        elif not isinstance(embedding, PixelEmbedding):
            raise TypeError(f"embedding must be that of a gate, a smoe.PixelEmbedding, got {type(embedding).__name__}")
        elif spatial_shape is not None and tuple(spatial_shape) != embedding.spatial_shape:
            raise ValueError(
                f"the embedding was made for a grid of {embedding.spatial_shape}, but spatial_shape is "
                f"{tuple(spatial_shape)}"
            )
        self.scale = scale
        self._kept: _Decision | None = None
        self.embedding = embedding
        save_once(self, "embedding")
        self.keys = nn.Parameter(torch.empty(num_experts, len(embedding.values), device=device, dtype=dtype))
        self.reset_keys()

    def _prefer(self, groups: torch.Tensor, strength: float) -> None:
        membership, rank = group_membership(groups), self.keys.shape[1]
        if rank < len(membership):
            raise ValueError(f"{len(membership)} groups need a rank of at least {len(membership)}, got {rank}")
        num_families = self.num_selected if self.order == "families" else 1
        of_expert = group_of_expert(self.num_experts, len(membership), num_families)
        # A number of the embedding for each group, to which the keys of its experts answer.
        self.embedding.values[: len(membership)] = (strength * START_STD / self.scale) * membership.to(self.keys)
        self.keys[:, : len(membership)] = 0.0
        self.keys[torch.arange(self.num_experts), of_expert] = 1.0

    @property
    def spatial_shape(self) -> tuple[int, ...]:
        return self.embedding.spatial_shape

    def reset_keys(self) -> None:
        nn.init.normal_(self.keys, std=1.0 / math.sqrt(self.keys.shape[1]))

    def _scores_of(self, experts: slice) -> torch.Tensor:
        return (self.scale * self.keys[experts]) @ self.embedding().to(self.keys.dtype).flatten(1)

    def raw_scores(self, input: torch.Tensor | None = None) -> torch.Tensor:
        del input
        return self._scores_of(slice(None)).unflatten(1, self.spatial_shape)

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "_kept": None}

    def _draw_again(self, seed: torch.Tensor | None, noise: float) -> Routing:
        """As its base says: on a CPU a selection is kept, and returned as long as all that decides it is equal."""
        numbers = (self.keys, self.embedding())
        is_plain = all(type(each) in (torch.Tensor, nn.Parameter) and each.is_cpu for each in numbers)
        if not is_plain or is_observed():
            return self._draw(seed, noise)
        kept, options = self._kept, (self.scale, None if seed is None else int(seed), noise)
        if (
            kept is not None
            and kept.options == options
            and all(map(is_equal, numbers, kept.numbers))
            # A tensor of `torch.inference_mode` could not be saved for a backward pass.
            and (torch.is_inference_mode_enabled() or not kept.routing.indices.is_inference())
        ):
            return kept.routing
        routing = self._draw(seed, noise)
        copies = tuple(each.detach().clone() for each in numbers)
        self._kept = None if routing.unranked is not None else _Decision(options, copies, routing)
        return routing

    def _draw(self, seed: torch.Tensor | None, noise: float) -> Routing:
        """Selects an expert of each family by the scores with noise, by one kernel where there is one."""
        keys = self.keys.detach()
        if keys.device.type != "cpu" or keys.dtype != torch.float32 or not has_library():
            return super()._draw(seed, noise)
        keys, embedding = self.scale * keys, self.embedding().detach().flatten(1)
        seed = keys.new_zeros((), dtype=torch.int64) if seed is None else seed
        indices = sample_factorised(keys, embedding, self.num_selected, seed, noise)
        unranked = None
        if not refuses_nonfinite(keys.device):
            unranked = nan_where_nonfinite(embedding[None]) + nan_where_nonfinite(keys.view(1, -1, 1))
        return Routing(indices, embedding[None, :0], unranked)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, rank={self.keys.shape[1]}, scale={self.scale:g}"
