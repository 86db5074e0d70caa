"""The variants of ResNet-50, as options of recipes (paper section 3.4). Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from smoe.experiments.gate_options import GateOptions
from smoe.options import Combiner


@dataclass(frozen=True)
class _Size:
    """What all of them share.

    Attributes:
        num_blocks: of the four stages.
        filters: of the first convolution; each stage has twice those of the one before.
    """

    num_blocks: tuple[int, int, int, int] = (3, 4, 6, 3)
    filters: int = 64


@dataclass(frozen=True)
class ResNet50Model(_Size):
    """ResNet-50, or Wide ResNet-50-2.

    Attributes:
        width_factor: of the 3x3 convolutions; 2 is Wide ResNet-50-2.
    """

    width_factor: int = 1


@dataclass(frozen=True)
class LowRankLocalResNet50Model(_Size):
    """ResNet-50 with its 3x3 convolutions as low-rank locally connected layers (LRLCN).

    Attributes:
        spatial_rank: bases. The paper does not say; of its SMoE it says that it has 56 % of the parameters. With 5
            bases it is 53 %, and 56 % if each layer had a gate of its own at 224 pixels; with 4, 63 %.
        combiner: how each pixel mixes them.
    """

    spatial_rank: int = 5
    combiner: Combiner = "input"


@dataclass(frozen=True)
class AddedSpatialMoEResNet50Model(GateOptions, _Size):
    """ResNet-50 with one SMoE layer of 3x3 experts added, with batch normalisation and ReLU.

    Attributes:
        position: `first`: after the 7x7 convolution. `last`: after the last residual block; the paper's words, and 75
            million parameters more, as it sees and returns 2048 channels. `last_3x3`: after the last 3x3 convolution,
            where there are 512.
    """

    position: Literal["first", "last", "last_3x3"] = "first"


@dataclass(frozen=True)
class SpatialMoEResNet50Model(GateOptions, _Size):
    """ResNet-50 with its 3x3 convolutions as SMoE layers.

    Attributes:
        share_gates: one gate for all layers of a stage.
    """

    share_gates: bool = True


ImageNetModel = ResNet50Model | LowRankLocalResNet50Model | AddedSpatialMoEResNet50Model | SpatialMoEResNet50Model
