"""Gates that were decided elsewhere, and gates with noise in training."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Self

import torch

from smoe.nn._gate import SpatialGate
from smoe.nn._gate_init import expert_membership
from smoe.nn._gates import TensorGate
from smoe.ops._conv_kernels import check_choices
from smoe.ops._families import family_sizes
from smoe.ops._operators import has_spare_bits, pack_bits, packed_shape, unpack_bits
from smoe.ops._routing import Routing
from smoe.options import Order


class FixedGate(SpatialGate):
    """Scores that stay as given; a buffer, so they move and are saved with the layer.

    Args:
        scores: Scores `(X, *grid)`.
        num_selected: E, the number of experts to select at each pixel.
        order: Order of the selected experts: `families`, `score` or `index`.
    """

    scores: torch.Tensor

    def __init__(self, scores: torch.Tensor, num_selected: int, *, order: Order = "score") -> None:
        if scores.ndim < 2 or not scores.is_floating_point():
            raise ValueError(f"scores must be floating (X, *grid), got {scores.dtype} of shape {tuple(scores.shape)}")
        super().__init__(scores.shape[0], num_selected, order=order)
        self.register_buffer("scores", scores.detach().clone())

    @classmethod
    def from_region_map(
        cls, region_map: torch.Tensor, num_experts: int | None = None, num_selected: int = 1
    ) -> FixedGate:
        """Each region's pixels use that region's share of the experts.

        With as many experts as regions, which is the default, pixels of region r use expert r.

        Args:
            region_map: Region numbers `(*grid)`, integers from 0 up.
            num_experts: X, the number of experts in the bank.
            num_selected: E, at most a region's share of the experts.
        """
        region_map = torch.as_tensor(region_map)
        if region_map.is_floating_point():
            raise ValueError(f"a region map holds integers, got {region_map.dtype}")
        num_regions = int(region_map.max()) + 1
        num_experts = num_regions if num_experts is None else num_experts
        membership = expert_membership(region_map, num_experts)
        if num_selected > num_experts // num_regions:
            raise ValueError(
                f"{num_regions} regions share {num_experts} experts, {num_experts // num_regions} at least for each, "
                f"but num_selected is {num_selected}"
            )
        return cls(membership, num_selected)

    @classmethod
    def random(
        cls, num_experts: int, num_selected: int, spatial_shape: tuple[int, ...], expert_channels: int = 1, **options
    ) -> FixedGate:
        """Random scores, frozen: the start of a `TensorGate` with the same arguments."""
        start = TensorGate(num_experts, num_selected, spatial_shape, expert_channels, **options)
        return cls(start.scores, num_selected, order=start.order)

    @property
    def spatial_shape(self) -> tuple[int, ...]:
        """Sizes of the grid the gate was made for."""
        return tuple(self.scores.shape[1:])

    def raw_scores(self, input: torch.Tensor | None = None) -> torch.Tensor:
        """The scores given at the start."""
        del input
        return self.scores


class DecidedGate(SpatialGate):
    """Selected experts that stay as given.

    A forward pass neither computes nor ranks scores. A state_dict holds the choice of each slot and pixel in as few
    bits as distinguish its candidates (`experts`, packed by `smoe.ops._operators`): all X experts or, in the order
    `families`, those of the slot's family. `sizes` are X, E and the grid, which are compared when they are loaded.

    Args:
        indices: Selected experts `(E, *grid)`, integers in [0, X), distinct at each pixel.
        num_experts: X, the number of experts in the bank.
        order: Order of the selected experts, which is that of the channels.
    """

    experts: torch.Tensor
    sizes: torch.Tensor
    indices: torch.Tensor
    no_scores: torch.Tensor

    def __init__(self, indices: torch.Tensor, num_experts: int, *, order: Order = "score") -> None:
        if indices.ndim < 2 or indices.is_floating_point() or indices.is_complex() or indices.dtype == torch.bool:
            raise ValueError(
                f"indices must be integers (E, *grid), got {indices.dtype} of shape {tuple(indices.shape)}"
            )
        super().__init__(num_experts, len(indices), order=order)
        self._grid = tuple(indices.shape[1:])
        flat = indices.detach().flatten(1)[None]
        self._check(flat)
        # In the dtype and shape that the layers read.
        self.register_buffer("indices", flat.to(torch.int32).contiguous(), persistent=False)
        self.register_buffer("experts", self._packed(self.indices))
        # Made once: a pass of a small layer is hardly longer than the making of a tensor.
        self.register_buffer("no_scores", torch.empty(1, 0, flat.shape[2], device=flat.device), persistent=False)
        self.register_buffer(
            "sizes", torch.tensor((num_experts, *indices.shape), dtype=torch.int32, device=indices.device)
        )

    @property
    def spatial_shape(self) -> tuple[int, ...]:
        """Sizes of the grid the gate was made for."""
        return self._grid

    def forward(self, input: torch.Tensor | None = None) -> Routing:
        """The experts given, with scores of 1 for them and 0 for the others."""
        scores = self.raw_scores(input).flatten(1)[None]
        return Routing(self.indices, scores, scores, scores)

    def route(self, input: torch.Tensor | None) -> Routing:
        """The experts given, with empty scores."""
        del input
        nothing = self.no_scores
        return Routing(self.indices, nothing, nothing, nothing)

    def raw_scores(self, input: torch.Tensor | None = None) -> torch.Tensor:
        """1 for the selected experts and 0 for the others, for diagnostics."""
        del input
        scores = torch.zeros(self.num_experts, self.indices.shape[2], device=self.indices.device)
        return scores.scatter_(0, self.indices[0].long(), 1.0).unflatten(1, self._grid)

    def decide(self, input: torch.Tensor | None) -> Routing:
        """The experts given, with empty scores."""
        return self.route(input)

    @property
    def _num_candidates(self) -> list[int]:
        """How many experts the choice of each slot is among."""
        if self.order == "families":
            return family_sizes(self.num_experts, self.num_selected)
        return [self.num_experts] * self.num_selected

    def _first_candidates(self, device: torch.device) -> torch.Tensor:
        """The first expert that each slot can select, `(E, 1)`."""
        numbers = torch.tensor(self._num_candidates, dtype=torch.int32, device=device)[:, None]
        return numbers.cumsum(0, dtype=torch.int32) - numbers if self.order == "families" else numbers * 0

    @property
    def _num_bits(self) -> int:
        return (max(self._num_candidates) - 1).bit_length()

    def _packed(self, indices: torch.Tensor) -> torch.Tensor:
        return pack_bits((indices[0] - self._first_candidates(indices.device)).flatten(), self._num_bits)

    def _unpacked(self, packed: torch.Tensor) -> torch.Tensor:
        """The indices `(1, E, P)` that were packed.

        Raises:
            ValueError: If they are no choice of this gate.
        """
        count = self.num_selected * math.prod(self._grid)
        shape = packed_shape(self._num_bits, count)
        if packed.dtype != torch.uint8 or tuple(packed.shape) != shape:
            raise ValueError(
                f"the choices of {self.num_selected} slots on {self._grid} among at most {max(self._num_candidates)} "
                f"experts must be uint8 of shape {shape}, got {packed.dtype} of shape {tuple(packed.shape)}"
            )
        if _has_values(packed) and has_spare_bits(packed, count):
            raise ValueError(f"bits beyond the last of {count} choices are set")
        choices = unpack_bits(packed, count).view(self.num_selected, -1)
        indices = (choices + self._first_candidates(packed.device))[None]
        self._check(indices)
        return indices

    def _check(self, indices: torch.Tensor) -> None:
        """Refuses indices `(1, E, P)` that the kernels, or the order, do not allow."""
        if not _has_values(indices):
            return
        indices = indices.cpu()
        if self.order != "families":
            check_choices(indices, self.num_experts, self._grid[-1])
            return
        # Families have no expert in common, so that the choices of a pixel are distinct.
        first = self._first_candidates(indices.device)
        end = first + torch.tensor(self._num_candidates)[:, None]
        foreign = ((indices[0] < first) | (indices[0] >= end)).nonzero()
        if len(foreign):
            slot, pixel = foreign[0].tolist()
            raise ValueError(
                f"slot {slot} must select an expert of its family, [{int(first[slot])}, {int(end[slot])}), got "
                f"{int(indices[0, slot, pixel])} at pixel {pixel}"
            )

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        try:
            self._check(self.indices)
        except ValueError:
            # `to_empty` leaves memory that nothing was written to: until a state_dict is loaded, each slot selects its
            # first candidate, because kernels do not look whether experts exist.
            first = self._first_candidates(self.indices.device)
            if self.order != "families":
                first = torch.arange(self.num_selected, dtype=torch.int32, device=first.device)[:, None]
            self.indices.copy_(first.expand_as(self.indices))
        return self

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
    ) -> None:
        sizes, packed = (state_dict.get(f"{prefix}{name}") for name in ("sizes", "experts"))
        if sizes is not None and _has_values(sizes):
            mine, saved = [self.num_experts, self.num_selected, *self._grid], sizes.tolist()
            if saved != mine:
                error_msgs.append(f"{prefix}sizes: X, E and the grid of the gate are {mine}, but {saved} were saved")
                return
        try:
            indices = None if packed is None else self._unpacked(packed)
        except ValueError as error:
            error_msgs.append(f"{prefix}experts: {error}")
            return
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        if indices is not None:
            self.indices = indices.to(self.experts.device)


def _has_values(values: torch.Tensor) -> bool:
    """Whether values can be read: not on the meta device, and not while a program is traced."""
    return not values.is_meta and type(values) is torch.Tensor


class NoisyGate(SpatialGate):
    """Adds independent normal noise to the scores of another gate in training mode, and none in evaluation mode.

    Every sample draws its own noise, so the routing of a noisy tensor gate differs between samples while it trains.

    Args:
        gate: Gate whose scores receive the noise; its normalisation is applied after the noise.
        std: Standard deviation of the noise; 1 / num_experts if None.
    """

    def __init__(self, gate: SpatialGate, std: float | None = None) -> None:
        super().__init__(gate.num_experts, gate.num_selected, order=gate.order, normalization=gate.normalization)
        if isinstance(gate, NoisyGate):
            raise ValueError("the gate is noisy already; give the larger std to one NoisyGate")
        if std is not None and not std > 0.0:
            raise ValueError(f"std must be positive, got {std}")
        self.gate = gate
        self.std = 1.0 / gate.num_experts if std is None else std
        self.looks_at_input = gate.looks_at_input

    @property
    def spatial_shape(self) -> tuple[int, ...] | None:
        """Grid of the gate that receives the noise."""
        return self.gate.spatial_shape

    def decide(self, input: torch.Tensor | None) -> Routing:
        """What the gate decides with its noise."""
        return self.route(input)

    def raw_scores(self, input: torch.Tensor | None = None) -> torch.Tensor:
        """Scores of the gate before the noise."""
        return self.gate.raw_scores(input)

    def add_noise(self, clean: torch.Tensor, input: torch.Tensor | None) -> tuple[torch.Tensor, float]:
        """The scores with independent noise for each sample of the input."""
        if not self.training or input is None:
            return clean, 0.0
        shape = (input.shape[0], *clean.shape[1:])
        return clean + self.std * torch.randn(shape, dtype=clean.dtype, device=clean.device), self.std

    def extra_repr(self) -> str:
        """The numbers that `repr` shows."""
        return f"{super().extra_repr()}, std={self.std:g}"
