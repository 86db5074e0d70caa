"""The networks of the weather experiment, as options of recipes (paper section 3.2). Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from smoe.experiments.gate_options import GateOptions
from smoe.options import Combiner


@dataclass(frozen=True)
class _ResNetSize:
    """What all variants of the ResNet share.

    Attributes:
        filters: of every convolution but the last; 256 makes the paper's `2x wide`.
        num_blocks: residual blocks, of two convolutions each.
        dropout: of every convolution but the last.
        positive: end with a ReLU, for precipitation.
    """

    filters: int = 128
    num_blocks: int = 19
    dropout: float = 0.1
    positive: bool = False


@dataclass(frozen=True)
class _Gate(GateOptions):
    """The gate of SMoE layers, with a prior.

    Attributes:
        prior: `land_sea` starts the gate with land preferring one half of the experts and sea the other.
        prior_strength: of the prior, in units of the largest random score; from 2 on it overrules these.
    """

    prior: Literal["none", "land_sea"] = "none"
    prior_strength: float = 2.0


@dataclass(frozen=True)
class ResNetModel(_ResNetSize):
    """The ResNet of Rasp and Thuerey."""


@dataclass(frozen=True)
class LocatedResNetModel(_ResNetSize):
    """The ResNet with the simplest ways to know the place, as baselines.

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
        spatial_rank: bases; the paper does not say. With 2, there are as many filters as the SMoE has experts.
        combiner: how each pixel mixes them; the paper's text names the one that looks at its input, for heat.
    """

    spatial_rank: int = 2
    combiner: Combiner = "input"


@dataclass(frozen=True)
class AddedSpatialMoEModel(_Gate, _ResNetSize):
    """The ResNet with one SMoE layer added.

    Attributes:
        position: `first`: after the 7x7 convolution, as a block of its own (SMoE, LeakyReLU, batch norm, dropout).
            `last`: such a block after the last residual block, where the filters are still all there.
            `output`: after the output convolution, choosing as many experts as there are fields to forecast.
    """

    position: Literal["first", "last", "output"] = "first"


@dataclass(frozen=True)
class SpatialMoEResNetModel(_Gate, _ResNetSize):
    """The ResNet with the 3x3 convolutions of its blocks as SMoE layers.

    Attributes:
        share_gates: one gate for all layers.
    """

    share_gates: bool = True


@dataclass(frozen=True)
class WeatherViTModel:
    """A vision transformer from fields to fields.

    Attributes:
        patch_size: pixels along each side of a patch.
        width: of a token.
        num_heads: of the attention.
        depth: number of blocks.
        hidden: width inside the MLPs.
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
