"""A gate that holds selected experts, and no scores: for networks whose routing does not change any more."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from smoe.nn.gates.gate import SpatialGate
from smoe.ops.routing import Routing
from smoe.options import Order


class DecidedGate(SpatialGate):
    """Selected experts that stay as given.

    A forward pass neither computes nor ranks scores. The experts are saved in the smallest integers that hold them.

    Args:
        indices: Selected experts `(E, *grid)`, integers in [0, X).
        num_experts: X, the number of experts in the bank.
        order: Order of the selected experts, which is that of the channels.
    """

    looks_at_input = False
    experts: torch.Tensor
    indices: torch.Tensor

    def __init__(self, indices: torch.Tensor, num_experts: int, *, order: Order = "score") -> None:
        if indices.ndim < 2 or indices.is_floating_point() or indices.is_complex() or indices.dtype == torch.bool:
            raise ValueError(
                f"indices must be integers (E, *grid), got {indices.dtype} of shape {tuple(indices.shape)}"
            )
        super().__init__(num_experts, len(indices), order=order)
        self.register_buffer("experts", indices.detach().to(_smallest_dtype(num_experts)).clone())
        # In the dtype and shape that the layers read.
        self.register_buffer("indices", _widened(self.experts), persistent=False)
        self._check()

    @property
    def spatial_shape(self) -> tuple[int, ...]:
        """Sizes of the grid the gate was made for."""
        return tuple(self.experts.shape[1:])

    def forward(self, input: torch.Tensor | None = None) -> Routing:
        """The experts given, with scores of 1 for them and 0 for the others."""
        scores = self.raw_scores(input).flatten(1)[None]
        routing = Routing(self.indices, scores, scores, scores)
        return routing if self._replacement is None else self._replacement(routing)

    def route(self, input: torch.Tensor | None, reader: nn.Module | None, select: Any = None) -> Routing:
        """The experts given, with empty scores."""
        del input, reader, select
        nothing = torch.empty(1, 0, self.indices.shape[2], device=self.indices.device)
        routing = Routing(self.indices, nothing, nothing, nothing)
        return routing if self._replacement is None else self._replacement(routing)

    def raw_scores(self, input: torch.Tensor | None = None) -> torch.Tensor:
        """1 for the selected experts and 0 for the others, for diagnostics."""
        del input
        scores = torch.zeros(self.num_experts, *self.spatial_shape, device=self.experts.device)
        return scores.scatter_(0, self.experts.long(), 1.0)

    def _check(self) -> None:
        if not self.experts.is_meta and self.experts.numel() > 0:
            lowest, highest = int(self.experts.min()), int(self.experts.max())
            if lowest < 0 or highest >= self.num_experts:
                raise ValueError(
                    f"the experts must be in [0, {self.num_experts}), got {lowest if lowest < 0 else highest}"
                )

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
    ) -> None:
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        try:
            self._check()
        except ValueError as error:
            error_msgs.append(f"{prefix}experts: {error}")
            return
        self.indices = _widened(self.experts)


def _smallest_dtype(num_experts: int) -> torch.dtype:
    return next(dtype for dtype in (torch.uint8, torch.int16, torch.int32) if num_experts - 1 <= torch.iinfo(dtype).max)


def _widened(experts: torch.Tensor) -> torch.Tensor:
    return experts.flatten(1)[None].to(torch.int32).contiguous()
