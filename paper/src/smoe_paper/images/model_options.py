"""Options of the classifiers of small images (paper appendix D). Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from smoe.options import Combiner
from smoe_paper.experiments.gate_options import GateOptions


@dataclass(frozen=True)
class _Size:
    """Common options: 3x3 layers that keep the grid, batch normalisation and ReLU, mean over pixels, linear layer.

    Attributes:
        filters: Number of filters of each layer.
        num_layers: Number of layers.
    """

    filters: int = 64
    num_layers: int = 3

    def __post_init__(self) -> None:
        for name in ("filters", "num_layers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


@dataclass(frozen=True)
class ConvClassifierModel(_Size):
    """Three convolutions."""


@dataclass(frozen=True)
class LocalClassifierModel(_Size):
    """Two convolutions and a locally connected layer (LCN)."""


@dataclass(frozen=True)
class CoordConvClassifierModel(_Size):
    """Three convolutions with coordinates as additional inputs (CoordConv).

    Attributes:
        coordinates: `image` appends the coordinates once, to the image, as Elsayed et al. do, whose set-up the paper
            follows; `all` appends them to the input of every layer, as in the paper's heat network.
    """

    coordinates: Literal["image", "all"] = "image"


@dataclass(frozen=True)
class WideClassifierModel(_Size):
    """Three convolutions with more filters.

    Attributes:
        matched_rank: Rank of a low-rank local layer. The widths are those of Elsayed et al.: the network has as many
            parameters as one with such a layer in place of the layer and a plain layer behind it. Grey images get
            66, 160 and 256 filters.
    """

    matched_rank: int = 4

    def widths(self, in_channels: int) -> tuple[int, ...]:
        """Returns the number of filters of each layer for images with some number of channels."""
        rank, filters = self.matched_rank, self.filters
        inputs = (in_channels, *(filters,) * (self.num_layers - 1))
        inner = (int((rank * number + filters) / (number + filters) * filters) for number in inputs[:-1])
        return *inner, filters * rank


@dataclass(frozen=True)
class LowRankLocalClassifierModel(_Size):
    """Three low-rank locally connected layers (LRLCN).

    Attributes:
        spatial_rank: Number of basis filters.
        combiner: Network that computes each pixel's mixture; the first one is that of Elsayed et al.
        spatial_bias: Add a learned bias for each row and column, as Elsayed et al. do.
    """

    spatial_rank: int = 4
    combiner: Combiner = "rows_and_columns"
    spatial_bias: bool = True


@dataclass(frozen=True)
class SpatialMoEClassifierModel(GateOptions, _Size):
    """Three SMoE layers that select 64 of 128 experts.

    Attributes:
        share_gates: Use one gate for all layers.
    """

    share_gates: bool = True

    def __post_init__(self) -> None:
        GateOptions.__post_init__(self)
        _Size.__post_init__(self)


ImageModel = (
    ConvClassifierModel
    | LocalClassifierModel
    | CoordConvClassifierModel
    | WideClassifierModel
    | LowRankLocalClassifierModel
    | SpatialMoEClassifierModel
)
