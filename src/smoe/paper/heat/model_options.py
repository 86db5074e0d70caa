"""The networks of the heat-diffusion experiment, as options of recipes (paper section 3.1). Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from smoe.options import Combiner, GateInit, Normalization, Order

GateName = Literal["tensor", "factorised", "conv", "coordconv", "coordconv3", "lcn", "linear", "fixed", "random"]


@dataclass(frozen=True)
class SpatialMoEModel:
    """One SMoE layer; with several selected experts their outputs are summed.

    Attributes:
        num_experts: experts in the bank.
        num_selected: experts chosen at each pixel.
        kernel_size: of the experts.
        experts: what an expert is: a convolution, or a CoordConv.
        gate: the gating function; `fixed` knows the region map, `random` is a frozen tensor gate.
        gate_init: start of a tensor gate.
        gate_start: `true` starts a tensor gate with each region preferring its own share of the experts.
        experts_start: `true` starts the experts as the diffusion stencils.
        experts_frozen: leave the experts as they start.
        normalization: of the gate's scores.
        gate_noise: disturb the scores while training.
        weighted: multiply the experts' outputs by their scores.
        order: Order of the selected experts.
        rank: Numbers for each pixel of a factorised gate.
        bias: Owner of the biases of the experts' outputs.
    """

    num_experts: int = 3
    num_selected: int = 1
    kernel_size: int = 3
    experts: Literal["conv", "coordconv"] = "conv"
    gate: Literal["tensor", "factorised", "conv", "coordconv", "coordconv3", "lcn", "linear", "fixed", "random"] = (
        "tensor"
    )
    gate_init: GateInit = "kaiming"
    gate_start: Literal["random", "true"] = "random"
    experts_start: Literal["random", "true"] = "random"
    experts_frozen: bool = False
    normalization: Normalization = "none"
    gate_noise: bool = False
    weighted: bool = False
    order: Order = "score"
    rank: int = 8
    bias: Literal["none", "slot", "expert"] = "none"

    def __post_init__(self) -> None:
        if self.gate_start == "true" and self.gate != "tensor":
            raise ValueError(f"gate_start='true' is the start of a tensor gate, but the gate is {self.gate!r}")
        if self.experts_start == "true" and (self.experts != "conv" or self.num_selected != 1 or self.kernel_size < 3):
            raise ValueError(
                "experts_start='true' needs convolution experts of at least 3 x 3, of which one is selected, got "
                f"experts={self.experts!r}, kernel_size={self.kernel_size} and num_selected={self.num_selected}"
            )


@dataclass(frozen=True)
class ConvNetModel:
    """Convolutions with batch normalisation and ReLU between them.

    Attributes:
        layer: what each layer is: a convolution, a CoordConv or a CondConv.
        hidden: filters of the layers before the last; the last one has one.
        kernel_size: of all layers.
        num_experts: kernels that a CondConv mixes for each sample.
    """

    layer: Literal["conv", "coordconv", "condconv"] = "conv"
    hidden: tuple[int, ...] = (8,)
    kernel_size: int = 3
    num_experts: int = 3


@dataclass(frozen=True)
class LowRankLocalModel:
    """One low-rank locally connected layer (LRLCN).

    Attributes:
        combiner: how each pixel mixes the basis filters.
        spatial_rank: number of basis filters.
        kernel_size: of the basis filters.
    """

    combiner: Combiner = "input"
    spatial_rank: int = 3
    kernel_size: int = 3


@dataclass(frozen=True)
class LocallyConnectedModel:
    """One locally connected layer (LCN): a filter of its own for each pixel.

    Attributes:
        kernel_size: of the filters.
    """

    kernel_size: int = 3


@dataclass(frozen=True)
class FullyConnectedModel:
    """One fully connected layer (FC): each pixel sees the whole grid; no bias."""


@dataclass(frozen=True)
class VisionTransformerModel:
    """A vision transformer (ViT), or with experts a vision mixture of experts (V-MoE).

    Attributes:
        patch_size: pixels along each side of a patch.
        width: of a token.
        num_heads: of the attention.
        depth: number of blocks.
        hidden: width inside the MLPs.
        num_experts: MLPs of which each token uses one; None for a plain transformer.
        auxiliary_weight: factor of V-MoE's balancing losses.
    """

    patch_size: int = 4
    width: int = 128
    num_heads: int = 4
    depth: int = 1
    hidden: int = 512
    num_experts: int | None = None
    auxiliary_weight: float = 0.01


HeatModel = (
    SpatialMoEModel
    | ConvNetModel
    | LowRankLocalModel
    | LocallyConnectedModel
    | FullyConnectedModel
    | VisionTransformerModel
)
