"""The networks of heat diffusion on meshes, as options of recipes. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class MeshMoEModel:
    """One SMoE layer for the domain: `SpatialMoE1d`, `SpatialMoE3d`, `HEALPixMoE` or `GraphMoE`.

    Attributes:
        num_experts: Experts in the bank.
        gate: `tensor`, a score for each expert and node; or `factorised`, the product of a few numbers of both.
        rank: Numbers of a factorised gate for each node.
        scale: Factor of the scores of a factorised gate.
        order: Order of the selected experts.
    """

    num_experts: int = 3
    gate: Literal["tensor", "factorised"] = "tensor"
    rank: int = 8
    scale: float = 30.0
    order: Literal["score", "index", "families"] = "score"


@dataclass(frozen=True)
class PlainModel:
    """The same layer with a single expert everywhere: a convolution, or a graph convolution like SAGEConv."""


@dataclass(frozen=True)
class SageModel:
    """A stack of torch_geometric's `SAGEConv` with ReLU between them, for domains without a grid.

    Attributes:
        hidden: Channels between the layers.
        node_features: Learned numbers of each node that are given to the first layer beside the input.
    """

    hidden: tuple[int, ...] = (16,)
    node_features: int = 0


MeshModel = MeshMoEModel | PlainModel | SageModel
