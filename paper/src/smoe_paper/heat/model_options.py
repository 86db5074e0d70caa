"""Options of the networks of the heat-diffusion experiment (paper section 3.1). Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from smoe.options import Combiner, GateInit, Normalization, Order

GateName = Literal["tensor", "factorised", "conv", "coordconv", "coordconv3", "lcn", "linear", "fixed", "random"]


@dataclass(frozen=True)
class SpatialMoEModel:
    """One SMoE layer; the outputs of several selected experts are summed.

    Attributes:
        num_experts: Number of experts in the bank.
        num_selected: Number of experts selected at each pixel.
        kernel_size: Rows and columns of the experts' kernels.
        experts: Kind of the experts: convolutions or CoordConv layers.
        gate: Gating function; `fixed` is the true region map, `random` a frozen tensor gate.
        gate_init: Initialisation of a tensor gate.
        gate_start: `true` starts a tensor gate with each region preferring its own share of the experts.
        experts_start: `true` starts the experts as the diffusion stencils.
        experts_frozen: Do not train the experts.
        normalization: Normalisation of the gate's scores.
        gate_noise: Add noise to the scores in training.
        weighted: Multiply the experts' outputs by their scores.
        order: Order of the selected experts.
        rank: Number of values for each pixel of a factorised gate.
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
        layer: Kind of the layers: convolutions, CoordConv or CondConv layers.
        hidden: Number of filters of each layer before the last; the last layer has one.
        kernel_size: Rows and columns of the kernels of all layers.
        num_experts: Number of kernels that a CondConv mixes for each sample.
    """

    layer: Literal["conv", "coordconv", "condconv"] = "conv"
    hidden: tuple[int, ...] = (8,)
    kernel_size: int = 3
    num_experts: int = 3


@dataclass(frozen=True)
class LowRankLocalModel:
    """One low-rank locally connected layer (LRLCN).

    Attributes:
        combiner: Network that computes each pixel's mixture of the basis filters.
        spatial_rank: Number of basis filters.
        kernel_size: Rows and columns of the basis filters.
    """

    combiner: Combiner = "input"
    spatial_rank: int = 3
    kernel_size: int = 3


@dataclass(frozen=True)
class LocallyConnectedModel:
    """One locally connected layer (LCN), with a filter for each pixel.

    Attributes:
        kernel_size: Rows and columns of the filters.
    """

    kernel_size: int = 3


@dataclass(frozen=True)
class FullyConnectedModel:
    """One fully connected layer (FC) without bias: each output pixel depends on the whole grid."""


@dataclass(frozen=True)
class VisionTransformerModel:
    """A vision transformer (ViT), or with experts a vision mixture of experts (V-MoE).

    Attributes:
        patch_size: Rows and columns of a patch, in pixels.
        width: Number of features of a token.
        num_heads: Number of attention heads.
        depth: Number of blocks.
        hidden: Number of features inside the MLPs.
        num_experts: Number of expert MLPs, of which each token uses one; None for a plain transformer.
        auxiliary_weight: Factor of V-MoE's balancing losses.
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
