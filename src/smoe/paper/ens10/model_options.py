"""The models that correct an ensemble, as options of recipes (paper section 3.3). Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from smoe.experiments.gate_options import GateOptions


@dataclass(frozen=True)
class _UNetSize:
    """What both U-Nets share.

    Attributes:
        filters: of the first level; each level has twice those of the one above.
        padding_mode: `zeros`, as ENS-10, or `longitude`, a difference to it: no seam where the longitude begins.
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
        expert_ratio: experts in the bank for each filter of the layer that is replaced.
        share_gates: one gate for all layers of the same grid and numbers of experts, apart in encoder and decoder.
        converts_head: also the last convolution, of two filters; the paper does not say. Its two outputs are the mean
            and the spread: ordered by score, an expert would be asked for both, and which one would change with the
            gate. So it is left, or takes `order="index"`.
    """

    expert_ratio: float = 4.0
    share_gates: bool = True
    converts_head: bool = False


@dataclass(frozen=True)
class EmosModel:
    """EMOS: a linear regression of the members and one of their spread, for the whole globe."""


EnsembleModel = UNetModel | SpatialMoEUNetModel | EmosModel
