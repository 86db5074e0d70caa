"""Options of the variants of ResNet-50 (paper section 3.4). Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from smoe.options import Combiner
from smoe_paper.experiments.gate_options import GateOptions


@dataclass(frozen=True)
class _Size:
    """Common options of all variants.

    Attributes:
        num_blocks: Number of blocks in each of the four stages.
        filters: Number of filters of the first convolution; each stage has twice as many as the stage before.
    """

    num_blocks: tuple[int, int, int, int] = (3, 4, 6, 3)
    filters: int = 64


@dataclass(frozen=True)
class ResNet50Model(_Size):
    """ResNet-50, or Wide ResNet-50-2.

    Attributes:
        width_factor: Factor of the filters of the 3x3 convolutions; 2 is Wide ResNet-50-2.
    """

    width_factor: int = 1


@dataclass(frozen=True)
class LowRankLocalResNet50Model(_Size):
    """ResNet-50 with its 3x3 convolutions as low-rank locally connected layers (LRLCN).

    Attributes:
        spatial_rank: Number of basis filters. The paper only states that its SMoE has 56 % of the LRLCN's parameters.
            With 5 it has 53 %, or 56 % if each layer had its own gate at 224 pixels; with 4 it has 63 %.
        combiner: Network that computes each pixel's mixture of the basis filters.
    """

    spatial_rank: int = 5
    combiner: Combiner = "input"


@dataclass(frozen=True)
class AddedSpatialMoEResNet50Model(GateOptions, _Size):
    """ResNet-50 with one SMoE layer of 3x3 experts added, with batch normalisation and ReLU.

    Attributes:
        position: `first` is after the 7x7 convolution. `last` is after the last residual block, as the paper's text
            says, with 2048 input and output channels and 75 million more parameters. `last_3x3` is after the last 3x3
            convolution, with 512 channels.
    """

    position: Literal["first", "last", "last_3x3"] = "first"


@dataclass(frozen=True)
class SpatialMoEResNet50Model(GateOptions, _Size):
    """ResNet-50 with its 3x3 convolutions as SMoE layers.

    Attributes:
        share_gates: Use one gate for all layers of a stage.
    """

    share_gates: bool = True


ImageNetModel = ResNet50Model | LowRankLocalResNet50Model | AddedSpatialMoEResNet50Model | SpatialMoEResNet50Model
