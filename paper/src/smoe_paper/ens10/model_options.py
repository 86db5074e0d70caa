"""Options of the models that correct an ensemble (paper section 3.3). Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from smoe_paper.experiments.gate_options import GateOptions


@dataclass(frozen=True)
class _UNetSize:
    """Common options of both U-Nets.

    Attributes:
        filters: Number of filters of the first level; each level has twice as many as the level above.
        padding_mode: `zeros`, as in ENS-10, or `longitude`, which has no seam at longitude 0.
    """

    filters: int = 32
    padding_mode: Literal["zeros", "longitude"] = "zeros"


@dataclass(frozen=True)
class UNetModel(_UNetSize):
    """The U-Net of ENS-10."""


@dataclass(frozen=True)
class SpatialMoEUNetModel(GateOptions, _UNetSize):
    """The U-Net with its 3x3 convolutions as SMoE layers.

    Attributes:
        expert_ratio: Number of experts in the bank for each filter of the replaced layer.
        share_gates: Use one gate for all layers of the encoder, or the decoder, with the same grid and experts.
        converts_head: Also convert the last convolution, which has two filters; the paper does not mention it. Its
            outputs are mean and spread: with the order `score` the meaning of an expert's output would depend on the
            gate. So the last convolution requires `order="index"`.
    """

    expert_ratio: float = 4.0
    share_gates: bool = True
    converts_head: bool = False


@dataclass(frozen=True)
class EmosModel:
    """EMOS: one linear regression of the members and one of their spread, for the whole globe."""


EnsembleModel = UNetModel | SpatialMoEUNetModel | EmosModel
