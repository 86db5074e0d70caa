"""Gates whose scores can be computed for some families of experts at a time.

The scores of 256 experts on a grid of 721 x 1440 pixels take 1 GB, and so do their gradient and whatever is compared
with them. Selecting the best expert of each family, and the straight-through gradient, need the scores of one family
only: where all of them would be large, they are computed band by band and never stored.
"""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import nn

from smoe.nn.gates.gate import SpatialGate
from smoe.ops.families import experts_of, sample_families, shifted_seed
from smoe.ops.registration import has_transforms
from smoe.ops.routing import Routing, nan_where_nonfinite, refuses_nonfinite

# Scores that are held at a time, 128 MB of them; a gate with more works in bands.
_MAX_SCORES = 1 << 25


class Band(NamedTuple):
    """Some families.

    Attributes:
        families: Numbers of the families.
        experts: Numbers of their experts.
    """

    families: slice
    experts: slice

    @property
    def num_families(self) -> int:
        """Number of families."""
        return self.families.stop - self.families.start


class BandedGate(SpatialGate):
    """A gate that does not look at its input, and computes the scores of single experts.

    Its parameters are either rows, one for each expert, or belong to all experts. A gate defines `row_parameters`,
    `common_parameters` and `scores_of`, from which `raw_scores` follows.
    """

    @property
    @abstractmethod
    def spatial_shape(self) -> tuple[int, ...]:
        """Sizes of the grid the gate was made for."""

    @abstractmethod
    def row_parameters(self) -> tuple[nn.Parameter, ...]:
        """Parameters with a row for each expert, `(X, ...)`."""

    def common_parameters(self) -> tuple[torch.Tensor, ...]:
        """Parameters that belong to all experts: none by default."""
        return ()

    @abstractmethod
    def scores_of(self, rows: tuple[torch.Tensor, ...], common: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Scores `(X', P)` of some experts, which can be differentiated.

        Args:
            rows: Rows of these experts, of each of `row_parameters`.
            common: All of `common_parameters`.
        """

    def raw_scores(self, input: torch.Tensor | None = None) -> torch.Tensor:
        """The scores of all experts."""
        del input
        return self.scores_of(self.row_parameters(), self.common_parameters()).unflatten(1, self.spatial_shape)

    def score_sources(self) -> tuple[torch.Tensor, ...]:
        """All parameters of the scores."""
        return (*self.row_parameters(), *self.common_parameters())

    @property
    def num_pixels(self) -> int:
        """P, the number of pixels."""
        return torch.Size(self.spatial_shape).numel()

    def bands(self) -> list[Band]:
        """The families in bands, each of which has few enough scores; at least a family is in each."""
        X, E = self.num_experts, self.num_selected
        per_band = max(1, _MAX_SCORES // (-(-X // E) * self.num_pixels))
        bands = (slice(first, min(E, first + per_band)) for first in range(0, E, per_band))
        return [Band(families, experts_of(X, E, families)) for families in bands]

    @property
    def works_in_bands(self) -> bool:
        """Whether experts are selected, and the straight-through gradient is computed, without storing all scores.

        A compiled pass stores them: its compiler decides what is kept. So does one under a transform of torch.func.
        """
        is_large = self.num_experts * self.num_pixels > _MAX_SCORES
        return is_large and self.selects_families and not (torch.compiler.is_compiling() or has_transforms())

    @property
    def selects_families(self) -> bool:
        """Whether the scores alone decide, family by family."""
        return self.order == "families" and self.normalization == "none"

    @property
    def can_draw(self) -> bool:
        """Whether `draw` is better than ranking the scores."""
        return self.works_in_bands

    @torch.no_grad()
    def draw(self, seed: torch.Tensor, noise: float) -> Routing:
        """Selects an expert of each family by the scores with noise, without storing the scores.

        Args:
            seed: Seed of the noise, an int64 scalar.
            noise: Standard deviation of the noise, in units of the scores.

        Returns:
            A routing with empty scores.
        """
        device = seed.device
        indices = torch.empty(1, self.num_selected, self.num_pixels, dtype=torch.int32, device=device)
        unranked = None if refuses_nonfinite(device) else torch.zeros(1, 1, self.num_pixels, device=device)
        common = self.common_parameters()
        # Half precision would make ties of distinct scores.
        with without_autocast(device):
            for band in self.bands():
                rows = tuple(parameter[band.experts] for parameter in self.row_parameters())
                scores = full_precision(self.scores_of(rows, common))[None]
                place = band.experts.start * self.num_pixels
                chosen = sample_families(scores, band.num_families, shifted_seed(seed, place), noise)
                indices[:, band.families] = chosen + band.experts.start
                if unranked is not None:
                    unranked += nan_where_nonfinite(scores)
        nothing = torch.empty(1, 0, self.num_pixels, device=device)
        return Routing(indices, nothing, nothing, nothing, unranked=unranked)

    def decide(self, input: torch.Tensor | None, reader: nn.Module | None) -> Routing:
        """The best expert of each family, where that is better without storing the scores."""
        if not self.can_draw:
            return self.route(input, reader)
        device = self.score_sources()[0].device
        return self.draw(torch.zeros((), dtype=torch.int64, device=device), 0.0)


def full_precision(scores: torch.Tensor) -> torch.Tensor:
    """Scores in at least float32, in which they are compared."""
    return scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """A context in which scores have the dtype of their parameters."""
    is_available = torch.amp.is_autocast_available(device.type)
    return torch.autocast(device.type, enabled=False) if is_available else nullcontext()
