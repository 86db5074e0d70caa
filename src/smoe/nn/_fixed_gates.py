"""Gates that were decided elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch

from smoe.nn._gate import SpatialGate, expert_membership
from smoe.nn._gates import TensorGate
from smoe.ops._conv_kernels import check_choices
from smoe.ops._families import family_sizes
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
        return tuple(self.scores.shape[1:])

    def raw_scores(self, input: torch.Tensor | None = None) -> torch.Tensor:
        del input
        return self.scores


class DecidedGate(SpatialGate):
    """Selected experts that stay as given.

    A forward pass neither computes nor ranks scores. A state_dict holds `indices` `(E, *grid)` in the smallest integers
    that hold X numbers; what is loaded is checked.

    Args:
        indices: Selected experts `(E, *grid)`, integers in [0, X), distinct at each pixel.
        num_experts: X, the number of experts in the bank.
        order: Order of the selected experts, which is that of the channels.
    """

    indices: torch.Tensor
    no_scores: torch.Tensor

    def __init__(self, indices: torch.Tensor, num_experts: int, *, order: Order = "score") -> None:
        if indices.ndim < 2:
            raise ValueError(f"indices must be integers (E, *grid), got shape {tuple(indices.shape)}")
        super().__init__(num_experts, len(indices), order=order)
        self._grid = tuple(indices.shape[1:])
        # In the dtype and shape that the layers read; saved in another.
        self.register_buffer("indices", self._checked(indices.detach()), persistent=False)
        # Made once: a pass of a small layer is hardly longer than the making of a tensor.
        nothing = torch.empty(1, 0, self.indices.shape[2], device=indices.device)
        self.register_buffer("no_scores", nothing, persistent=False)

    @property
    def spatial_shape(self) -> tuple[int, ...]:
        return self._grid

    def forward(self, input: torch.Tensor | None = None) -> Routing:
        scores = self.raw_scores(input).flatten(1)[None]
        return Routing(self.indices, scores)

    def route(self, input: torch.Tensor | None) -> Routing:
        """The experts given, with empty scores."""
        del input
        return Routing(self.indices, self.no_scores)

    def raw_scores(self, input: torch.Tensor | None = None) -> torch.Tensor:
        """1 for the selected experts and 0 for the others, for diagnostics."""
        del input
        scores = torch.zeros(self.num_experts, self.indices.shape[2], device=self.indices.device)
        return scores.scatter_(0, self.indices[0].long(), 1.0).unflatten(1, self._grid)

    def _decide(self, input: torch.Tensor | None) -> Routing:
        return self.route(input)

    def _bounds(self) -> torch.Tensor:
        """The first expert that each slot can select, and the end of its range, `(2, E, 1)`."""
        if self.order != "families":
            return torch.tensor([0, self.num_experts])[:, None, None].expand(2, self.num_selected, 1)
        ends = torch.tensor([0, *family_sizes(self.num_experts, self.num_selected)]).cumsum(0)
        return torch.stack([ends[:-1], ends[1:]])[:, :, None]

    def _checked(self, indices: torch.Tensor) -> torch.Tensor:
        """Indices `(E, *grid)` as `(1, E, P)`, int32.

        Raises:
            ValueError: If the kernels, or the order, do not allow such a choice.
        """
        shape = (self.num_selected, *self._grid)
        if indices.dtype not in (torch.uint8, torch.int16, torch.int32, torch.int64) or tuple(indices.shape) != shape:
            raise ValueError(f"indices must be integers {shape}, got {indices.dtype} of shape {tuple(indices.shape)}")
        flat = indices.flatten(1)[None].to(torch.int32).contiguous()
        # Values cannot be read on the meta device, nor while a program is traced.
        if flat.is_meta or type(flat) is not torch.Tensor:
            return flat
        if self.order != "families":
            check_choices(flat.cpu(), self.num_experts, self._grid[-1])
            return flat
        # Families have no expert in common, so that the choices of a pixel are distinct.
        first, end = self._bounds()
        choices = flat[0].cpu()
        foreign = ((choices < first) | (choices >= end)).nonzero()
        if len(foreign):
            slot, pixel = foreign[0].tolist()
            raise ValueError(
                f"slot {slot} must select an expert of its family, [{int(first[slot])}, {int(end[slot])}), got "
                f"{int(choices[slot, pixel])} at pixel {pixel}"
            )
        return flat

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        try:
            self._checked(self.indices[0].unflatten(1, self._grid))
        except ValueError:
            # `to_empty` leaves memory that nothing was written to: until a state_dict is loaded, each slot selects its
            # first candidate, because kernels do not look whether experts exist.
            first = self._bounds()[0] if self.order == "families" else torch.arange(self.num_selected)[:, None]
            self.indices.copy_(first.expand_as(self.indices[0]))
        return self

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        dtype = next(
            kind for kind in (torch.uint8, torch.int16, torch.int32) if self.num_experts <= torch.iinfo(kind).max + 1
        )
        destination[f"{prefix}indices"] = self.indices[0].unflatten(1, self._grid).to(dtype)

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
    ) -> None:
        saved = state_dict.get(f"{prefix}indices")
        if saved is None:
            missing_keys.append(f"{prefix}indices")
        else:
            try:
                indices = self._checked(saved)
            except ValueError as error:
                error_msgs.append(f"{prefix}indices: {error}")
                return
            # What is assigned to a network without memory brings its device.
            device = saved.device if self.indices.is_meta else self.indices.device
            self.indices, self.no_scores = indices.to(device), torch.empty_like(self.no_scores, device=device)
        rest = {key: value for key, value in state_dict.items() if key != f"{prefix}indices"}
        super()._load_from_state_dict(rest, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
