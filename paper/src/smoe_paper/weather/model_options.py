"""Options of the networks of the weather experiment (paper section 3.2). Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from smoe.options import Combiner
from smoe_paper.experiments.gate_options import GateOptions


@dataclass(frozen=True)
class _ResNetSize:
    """Common options of all variants of the ResNet.

    Attributes:
        filters: Number of filters of every convolution but the last; 256 is the paper's `2x wide`.
        num_blocks: Number of residual blocks of two convolutions each.
        dropout: Dropout probability after every convolution but the last.
        positive: End with a ReLU, for precipitation.
    """

    filters: int = 128
    num_blocks: int = 19
    dropout: float = 0.1
    positive: bool = False


@dataclass(frozen=True)
class _Gate(GateOptions):
    """Options of the gate of SMoE layers, with a prior.

    Attributes:
        prior: `land_sea` starts the gate with land preferring one half of the experts and sea the other.
        prior_strength: Strength of the prior in units of the largest random score; from 2 on, the prior always wins.
    """

    prior: Literal["none", "land_sea"] = "none"
    prior_strength: float = 2.0


@dataclass(frozen=True)
class ResNetModel(_ResNetSize):
    """The ResNet of Rasp and Thuerey."""


@dataclass(frozen=True)
class LocatedResNetModel(_ResNetSize):
    """The ResNet with simple kinds of position information, as baselines.

    Attributes:
        local_affine: Multiply each output of the blocks' convolutions by a learned number at each pixel, and add
            another.
        learned_channels: Number of learned fields that are appended to the input.
    """

    local_affine: bool = False
    learned_channels: int = 0


@dataclass(frozen=True)
class LowRankLocalResNetModel(_ResNetSize):
    """The ResNet with the 3x3 convolutions of its blocks as low-rank locally connected layers (LRLCN).

    Attributes:
        spatial_rank: Number of basis filters; the paper gives none. With 2, there are as many filters as experts.
        combiner: Network that computes each pixel's mixture; the paper's text names `input` for heat.
    """

    spatial_rank: int = 2
    combiner: Combiner = "input"


@dataclass(frozen=True)
class AddedSpatialMoEModel(_Gate, _ResNetSize):
    """The ResNet with one SMoE layer added.

    Attributes:
        position: `first` is after the 7x7 convolution, as a separate block (SMoE, LeakyReLU, batch norm, dropout).
            `last` is such a block after the last residual block, with the same number of filters.
            `output` is after the output convolution and selects as many experts as there are fields to forecast.
    """

    position: Literal["first", "last", "output"] = "first"


@dataclass(frozen=True)
class SpatialMoEResNetModel(_Gate, _ResNetSize):
    """The ResNet with the 3x3 convolutions of its blocks as SMoE layers.

    Attributes:
        share_gates: Use one gate for all layers.
    """

    share_gates: bool = True


@dataclass(frozen=True)
class WeatherViTModel:
    """A vision transformer from fields to fields.

    Attributes:
        patch_size: Rows and columns of a patch, in pixels.
        width: Number of features of a token.
        num_heads: Number of attention heads.
        depth: Number of blocks.
        hidden: Number of features inside the MLPs.
    """

    patch_size: int = 2
    width: int = 1024
    num_heads: int = 8
    depth: int = 4
    hidden: int = 4096


WeatherModel = (
    ResNetModel
    | LocatedResNetModel
    | LowRankLocalResNetModel
    | AddedSpatialMoEModel
    | SpatialMoEResNetModel
    | WeatherViTModel
)
